/** Makes an order in one transaction, and kills itself at a place: URL TABLE KEY PLACE (2n - 1: before statement n, 2n: after it). */
import pg from "pg"
import * as sql from "../src/pg.js"

const [url, table = "", key = "", place] = process.argv.slice(2)
const pool = new pg.Pool({ connectionString: url })
let passed = 0
function pass(): void {
  passed += 1
  if (passed === Number(place)) process.kill(process.pid, "SIGKILL")
}
const killing: sql.ConnectionPool = {
  async connect() {
    const client = await pool.connect()
    const query = async (text: string, values?: unknown[]) => {
      pass()
      const result = await client.query(text, values)
      pass()
      return result
    }
    return { query, release: (error) => client.release(error) }
  },
}
await sql.once(
  killing,
  "CreateOrder",
  key,
  async (db) => {
    await db.query(`INSERT INTO ${table} (item) VALUES ($1)`, [key])
    await sql.enqueue(db, "orders", key, { item: key })
  },
  { waitMs: 60_000 },
)
await pool.end()
