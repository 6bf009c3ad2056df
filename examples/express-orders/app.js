// Orders with Express and PostgreSQL: order, answer and outgoing message commit in one transaction.
import { createRequire } from "node:module"
import express from "express"
import pg from "pg"
import { keyedRequest, sendAnswer } from "hapax-client/express"
import { answerOnce, enqueue } from "hapax-client/pg"
import { page } from "./page.js"

const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL })
pool.on("error", () => {}) // a connection that ends in the pool is replaced with the next query
await pool.query(`CREATE TABLE IF NOT EXISTS express_orders (id bigserial PRIMARY KEY, item text NOT NULL, cups integer NOT NULL)`)

const app = express()

app.post("/orders", async (request, response) => {
  const keyed = await keyedRequest(request)
  // One caller for the demo; a real shop says who is asking: { scope: { cookie: "session" } }.
  const options = { requireKey: true, scope: "single" }
  const answer = await answerOnce(pool, keyed, options, async (db) => {
    const form = new URLSearchParams(Buffer.from(keyed.body).toString())
    const [item, cups] = [form.get("item") ?? "", Number(form.get("cups") ?? 1)]
    if (item === "" || !Number.isInteger(cups) || cups < 1 || cups > 100) {
      return { status: 400, body: { error: "send item=… and cups=1 to 100" } } // stored, too: a retry gets it again
    }
    const { rows } = await db.query("INSERT INTO express_orders (item, cups) VALUES ($1, $2) RETURNING id", [item, cups])
    const order = { id: Number(rows[0].id), item, cups }
    await enqueue(db, "orders.created", `order-${order.id}`, order)
    return { status: 201, headers: { location: `/orders/${order.id}` }, body: order }
  })
  sendAnswer(response, answer)
})

app.get("/orders", async (_request, response) => {
  const { rows } = await pool.query("SELECT id, item, cups FROM express_orders ORDER BY id DESC LIMIT 100")
  response.json(rows)
})

app.get("/", (_request, response) => response.type("html").send(page))
app.get("/hapax.js", (_request, response) => response.sendFile(createRequire(import.meta.url).resolve("hapax-client/browser.min.js")))

const listener = app.listen(Number(process.env.PORT ?? 3000), "127.0.0.1", () => {
  console.log(`listening on http://127.0.0.1:${listener.address().port}`)
})
