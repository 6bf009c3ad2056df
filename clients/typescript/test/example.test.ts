/** examples/express-orders: one order, one answer, one message, whatever happens. */
import assert from "node:assert/strict"
import { execFileSync, spawn } from "node:child_process"
import type { ChildProcess } from "node:child_process"
import { cpSync, mkdirSync, rmSync, symlinkSync } from "node:fs"
import { join } from "node:path"
import { after, before, describe, test } from "node:test"
import pg from "pg"
import { chromium } from "playwright-core"
import { PATIENCE_MS, unique, until } from "./support.js"

const database = process.env["HAPAX_TEST_POSTGRES_URL"]
const ROOT = process.env["HAPAX_TEST_ROOT"] ?? "../../.."
const FOLDER = "example"

interface App {
  url: string
  process: ChildProcess
}

describe("express-orders", { skip: database === undefined && "no PostgreSQL" }, () => {
  let pool: pg.Pool
  before(() => {
    execFileSync(process.env["HAPAX_TEST_BIN"] ?? "hapax", ["migrate", "--store", database ?? ""])
    rmSync(FOLDER, { recursive: true, force: true })
    cpSync(join(ROOT, "examples/express-orders"), FOLDER, { recursive: true })
    mkdirSync(join(FOLDER, "node_modules"))
    symlinkSync(process.cwd(), join(FOLDER, "node_modules/hapax-client"))
    pool = new pg.Pool({ connectionString: database })
    pool.on("error", () => {})
  })
  after(() => pool.end())

  async function start(port = 0): Promise<App> {
    const env = { ...process.env, DATABASE_URL: database, PORT: String(port) }
    const child = spawn(process.execPath, ["app.js"], { cwd: FOLDER, env, stdio: ["ignore", "pipe", "inherit"] })
    let output = ""
    child.stdout.on("data", (chunk: Buffer) => (output += chunk.toString()))
    await until("the service listens", () => output.includes("listening on "))
    return { url: /listening on (\S+)/.exec(output)?.[1] ?? "", process: child }
  }
  const count = async (text: string, item: string) => Number((await pool.query(text, [item])).rows[0].count)
  const orders = (item: string) => count("SELECT count(*) FROM express_orders WHERE item = $1", item)
  const messages = (item: string) =>
    count("SELECT count(*) FROM hapax_outbox WHERE topic = 'orders.created' AND convert_from(payload, 'UTF8')::jsonb->>'item' = $1", item)
  const send = (url: string, key: string, item: string) =>
    fetch(`${url}/orders`, { method: "POST", headers: { "idempotency-key": key }, body: new URLSearchParams({ item, cups: "2" }) })

  test("concurrent requests make one order and one message", async () => {
    const app = await start()
    try {
      const [key, item] = [unique("k"), unique("tea")]
      const answers = await Promise.all(Array.from({ length: 16 }, () => send(app.url, key, item)))
      const bodies = await Promise.all(answers.map(async (answer) => `${answer.status} ${await answer.text()}`))
      assert.equal(new Set(bodies).size, 1)
      assert.match(bodies[0] ?? "", /^201 /)
      assert.deepEqual([await orders(item), await messages(item)], [1, 1])
      assert.equal((await send(app.url, key, "other")).status, 422)
      assert.equal((await send(app.url, "", item)).status, 400)
      assert.equal((await send(app.url, unique("k"), "")).status, 400)
    } finally {
      app.process.kill("SIGKILL")
    }
  })

  test("a service that is killed at any moment makes one order and one message", async () => {
    for (let round = 0; round < 6; round++) {
      const [key, item] = [unique("k"), unique("tea")]
      const first = await start()
      const sent = send(first.url, key, item).catch(() => undefined)
      await new Promise((resolve) => setTimeout(resolve, round * 4))
      first.process.kill("SIGKILL")
      await sent
      const second = await start()
      try {
        await until("the retry is answered", async () => (await send(second.url, key, item)).status === 201)
        assert.deepEqual([await orders(item), await messages(item)], [1, 1])
      } finally {
        second.process.kill("SIGKILL")
      }
    }
  })

  test("the form in a browser, pressed twice, makes one order", async () => {
    const app = await start()
    const args = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
    const browser = await chromium.launch({ executablePath: process.env["HAPAX_TEST_CHROMIUM"] ?? "/usr/bin/chromium", headless: true, args, timeout: PATIENCE_MS })
    try {
      const item = unique("tea")
      const page = await browser.newPage()
      page.setDefaultTimeout(PATIENCE_MS)
      await page.goto(app.url)
      await page.fill("[name=item]", item)
      await page.dblclick("button")
      await page.waitForFunction("document.querySelector('output').value.startsWith('order ')")
      assert.deepEqual([await orders(item), await messages(item)], [1, 1])
    } finally {
      await browser.close()
      app.process.kill("SIGKILL")
    }
  })
})
