/** The browser helper in a real Chromium, and its size. */
import assert from "node:assert/strict"
import { readFileSync } from "node:fs"
import { createServer } from "node:http"
import type { Server as HttpServer } from "node:http"
import type { AddressInfo } from "node:net"
import { join } from "node:path"
import { after, before, test } from "node:test"
import { gzipSync } from "node:zlib"
import express from "express"
import { chromium } from "playwright-core"
import type { Browser, Page } from "playwright-core"
import { idempotency } from "../src/express.js"
import { readGuide } from "./guide.js"
import { PATIENCE_MS, mkdtemp, startServer, unique, until } from "./support.js"
import type { Server } from "./support.js"

const helper = join(process.cwd(), "dist/browser.min.js")

test("the browser helper has less than 3000 bytes, minified and gzipped", () => {
  const size = gzipSync(readFileSync(helper), { level: 9 }).length
  assert.ok(size < 3000, `${size} bytes`)
})

let server: Server
let browser: Browser
let web: HttpServer
let origin: string
/** The keys with which orders arrived, and the orders that were made. */
const arrived: string[] = []
const orders: string[] = []
let [cuts, isHeld] = [0, false]

const PAGE = `<!doctype html><form id="order" action="/orders" method="post"><input name="item" value="tea"><button>order</button></form>
<button id="pay">pay</button><output></output><ol></ol>
<script type="module">
import { Intent, bindButton, bindForm, followJob } from "/hapax.js"
const show = async (response) => (document.querySelector("output").value = response.status + " " + (await response.text()))
bindForm(document.querySelector("form"), { onAnswer: show, timeoutMs: 60000 })
bindButton(document.querySelector("#pay"), { send: (intent) => intent.fetch("/orders", { method: "POST" }), onAnswer: show })
window.follow = (url) => followJob(url, {
  resume: "job",
  onEvent: (event) => document.querySelector("ol").append(Object.assign(document.createElement("li"), { textContent: event.stage })),
  onGap: (gap) => (document.title = "gap " + gap.from),
  onEnd: () => (document.title = "end"),
})
window.ready = true
</script>`

before(async () => {
  server = await startServer(`sqlite:${join(mkdtemp(), "hapax.db")}`, ["--sse-origins", "*"])
  const app = express()
  app.get("/", (_, response) => void response.type("html").send(PAGE))
  app.get("/guide", (_, response) => void response.type("html").send(readGuide("html")[0]))
  app.get("/hapax.js", (_, response) => void response.sendFile(helper))
  app.use((request, _, next) => {
    arrived.push(String(request.headers["idempotency-key"]))
    if (cuts > 0) {
      cuts -= 1
      return void request.socket.destroy()
    }
    next()
  })
  app.use(idempotency({ client: server.client(), waitMs: 60_000 }), express.urlencoded())
  app.post("/orders", async (request, response) => {
    await until("the order is let go", () => !isHeld)
    orders.push(String((request.body as { item?: string } | undefined)?.item))
    response.status(201).send(`order ${orders.length}`)
  })
  web = createServer(app)
  await new Promise<void>((resolve) => web.listen(0, "127.0.0.1", resolve))
  origin = `http://127.0.0.1:${(web.address() as AddressInfo).port}`
  const args = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
  browser = await chromium.launch({ executablePath: process.env["HAPAX_TEST_CHROMIUM"] ?? "/usr/bin/chromium", headless: true, args, timeout: PATIENCE_MS })
})
after(async () => {
  await browser?.close()
  web?.closeAllConnections()
  web?.close()
  await server?.stop()
})

async function open(): Promise<Page> {
  const page = await (await browser.newContext()).newPage()
  page.setDefaultTimeout(PATIENCE_MS)
  await page.goto(origin)
  await page.waitForFunction("window.ready === true")
  return page
}

/** Waits until the page shows this answer. */
async function shows(page: Page, text: string): Promise<void> {
  await page.waitForFunction((text) => document.querySelector("output")?.value === text, text)
}

test("a form that is sent twice, also over a reload, is one order", async () => {
  const page = await open()
  const [before, first] = [orders.length, arrived.length]
  isHeld = true
  await page.dblclick("form button")
  await until("the order arrived", () => arrived.length > first)
  await page.reload()
  await page.waitForFunction("window.ready === true")
  await page.click("form button")
  await until("the second attempt arrived", () => arrived.length > first + 1)
  isHeld = false
  await shows(page, `201 order ${before + 1}`)
  assert.deepEqual([orders.length - before, orders.at(-1)], [1, "tea"])
  assert.equal(new Set(arrived.slice(first)).size, 1)
  // The intent is over: the next one is another order.
  await page.click("form button")
  await shows(page, `201 order ${before + 2}`)
  assert.equal(new Set(arrived.slice(first)).size, 2)
  await page.context().close()
})

test("a request whose connection is cut is sent again with the same key", async () => {
  const page = await open()
  const [before, first] = [orders.length, arrived.length]
  cuts = 2
  await page.click("#pay")
  await shows(page, `201 order ${before + 1}`)
  assert.ok(arrived.length >= first + 3)
  assert.equal(new Set(arrived.slice(first)).size, 1)
  assert.equal(orders.length, before + 1)
  await page.context().close()
})

test("a job is followed to its end, and on after a reload", async () => {
  const client = server.client()
  const job = unique("job")
  const page = await open()
  const url = `${server.url}/v1/jobs/scan/${job}/events`
  const stages = () => page.locator("li").allTextContents()
  await client.publish("scan", job, "one", 1, {})
  await page.evaluate(`window.follow("${url}")`)
  await page.waitForFunction("document.querySelectorAll('li').length === 1")
  await client.publish("scan", job, "two", 2, {})
  await page.waitForFunction("document.querySelectorAll('li').length === 2")
  assert.deepEqual(await stages(), ["one", "two"])
  await page.reload()
  await page.waitForFunction("window.ready === true")
  await page.evaluate(`window.follow("${url}")`)
  await client.publish("scan", job, "three", 3, {}, { final: true })
  await page.waitForFunction("document.title === 'end'")
  assert.deepEqual(await stages(), ["three"])
  await page.context().close()
})

test("the page of the guide works as it is printed", async () => {
  const before = orders.length
  const page = await (await browser.newContext()).newPage()
  page.setDefaultTimeout(PATIENCE_MS)
  await page.goto(`${origin}/guide`)
  await page.dblclick("form button")
  await shows(page, `order ${before + 1}`)
  assert.equal(orders.length, before + 1)
  await page.context().close()
})
