/** The middlewares under real Express, Fastify and Hono, with real requests, behave as the Rust layer does. */
import assert from "node:assert/strict"
import { request as httpRequest } from "node:http"
import { join } from "node:path"
import { after, before, describe, test } from "node:test"
import type { IdempotencyOptions } from "../src/idempotency/gate.js"
import { connect } from "../src/index.js"
import { frameworks } from "./frameworks.js"
import type { Seen, Wanted } from "./frameworks.js"
import { mkdtemp, startServer, unique, until } from "./support.js"
import type { Server } from "./support.js"

let server: Server
before(async () => {
  server = await startServer(`sqlite:${join(mkdtemp(), "hapax.db")}`)
})
after(() => server.stop())

interface Answer {
  status: number
  headers: Headers
  bytes: Buffer
  code: string | undefined
  replayed: boolean
}

async function send(url: string, key: string | undefined, wanted: Wanted | string = {}, headers: Record<string, string> = {}, method = "POST"): Promise<Answer> {
  const init: RequestInit = { method, headers: { "content-type": "application/json", ...(key === undefined ? {} : { "idempotency-key": key }), ...headers } }
  if (method !== "GET") init.body = typeof wanted === "string" ? wanted : JSON.stringify(wanted)
  const response = await fetch(url, init)
  const bytes = Buffer.from(await response.arrayBuffer())
  const isProblem = response.headers.get("content-type") === "application/problem+json"
  const problem = isProblem ? (JSON.parse(bytes.toString()) as { type: string; status: number }) : undefined
  if (problem !== undefined) assert.equal(problem.status, response.status)
  return { status: response.status, headers: response.headers, bytes, code: problem?.type.split("/").pop(), replayed: response.headers.get("idempotent-replayed") === "true" }
}

/** Sends a request with header lines as they are. */
function sendRaw(url: string, headers: string[]): Promise<number> {
  return new Promise((resolve, reject) => {
    const host = new URL(url).host
    const request = httpRequest(url, { method: "POST", headers: ["host", host, "content-length", "0", ...headers] as never })
    request.on("response", (response) => resolve(response.resume().statusCode ?? 0)).on("error", reject)
    request.end()
  })
}

for (const [name, start] of await frameworks()) {
  describe(name, () => {
    let app: Seen
    const withApp = async (options: Partial<IdempotencyOptions>, run: (app: Seen) => Promise<void>) => {
      const own = await start({ client: server.client(), ...options })
      try {
        await run(own)
      } finally {
        own.goOn()
        await own.stop()
      }
    }
    before(async () => {
      app = await start({ client: server.client(), waitMs: 60_000 })
    })
    after(() => app.stop())

    test("replays status, headers and bytes", async () => {
      const key = unique("k")
      const headers = { location: "/orders/1", "x-many": ["a", "b"], "content-type": "application/x-thing", "set-cookie": "a=b" }
      for (const wanted of [{ headers, binary: true }, { headers, body: "ünï" }, { status: 404, headers }, { body: "" }] as Wanted[]) {
        const own = unique(key)
        const runs = app.runs
        const first = await send(app.url, own, wanted)
        const again = await send(app.url, `"${own}"`, wanted)
        assert.deepEqual([first.replayed, again.replayed, app.runs - runs], [false, true, 1])
        assert.deepEqual([again.status, again.bytes], [first.status, first.bytes])
        assert.equal(first.status, wanted.status ?? 201)
        for (const name of ["location", "x-many", "content-type"]) assert.equal(again.headers.get(name), first.headers.get(name))
        assert.equal(again.headers.get("set-cookie"), null)
        const expires = Date.parse(again.headers.get("idempotency-expires") ?? "")
        assert.ok(Math.abs(expires - Date.now() - 86_400_000) < 600_000)
      }
      const empty = unique(key)
      assert.equal((await send(app.url, empty, { status: 204 })).status, 204)
      const replayed = await send(app.url, empty, { status: 204 })
      assert.deepEqual([replayed.status, replayed.replayed, replayed.bytes.length], [204, true, 0])
    })

    test("64 concurrent requests run once", async () => {
      const key = unique("k")
      const runs = app.runs
      const answers = await Promise.all(Array.from({ length: 64 }, () => send(app.url, key, { pieces: ["a", "b"] })))
      assert.equal(app.runs - runs, 1)
      for (const { status, bytes } of answers) assert.deepEqual([status, bytes.toString()], [201, "ab"])
      assert.equal(answers.filter(({ replayed }) => !replayed).length, 1)
    })

    test("refuses keys that are no keys", async () => {
      const runs = app.runs
      for (const key of ["", " ", "a b", "x".repeat(256), '"open', '"a"b', '"a";p=1', '""', "\u00fc"]) {
        assert.equal((await send(app.url, key)).code, "invalid-key", key)
      }
      assert.equal(await sendRaw(app.url, ["idempotency-key", "a", "idempotency-key", "b"]), 400)
      assert.equal(app.runs, runs)
    })

    test("another query, content type or body under the same key is 422", async () => {
      const key = unique("k")
      await send(app.url, key, '{"body":"1"}')
      assert.equal((await send(app.url, key, '{"body": "1"}')).code, "key-reused")
      assert.equal((await send(`${app.url}?a=1`, key, '{"body":"1"}')).code, "key-reused")
      assert.equal((await send(app.url, key, '{"body":"1"}', { "content-type": "text/plain" })).code, "key-reused")
      assert.equal((await send(app.url, key, '{"body":"1"}', {}, "PATCH")).replayed, false)
      assert.equal((await send(app.url, key, '{"body":"1"}')).replayed, true)
    })

    test("a fingerprint of the JSON value ignores order and white space", async () => {
      await withApp({ fingerprint: "json" }, async (own) => {
        const key = unique("k")
        await send(own.url, key, '{"body":"1","status":201}')
        assert.equal((await send(own.url, key, '{ "status" : 201, "body": "\\u0031" }')).replayed, true)
        assert.equal((await send(own.url, key, '{"status":201.0,"body":"1"}')).code, "key-reused")
        assert.equal((await send(own.url, key, '{"body":"1","status":201,"status":201}')).code, "key-reused")
      })
    })

    test("a request without a key passes, or is refused where one is needed", async () => {
      const runs = app.runs
      await send(app.url, undefined)
      await send(app.url, undefined, {}, { "hapax-attempt": "9", "hapax-fence": "9" })
      assert.equal(app.runs - runs, 2)
      assert.equal(app.attempts.at(-1), "undefined false")
      assert.equal((await send(app.url, unique("k"), {}, {}, "GET")).replayed, false)
      await withApp({ requireKey: true }, async (own) => {
        assert.equal((await send(own.url, undefined)).code, "key-missing")
        assert.equal((await send(own.url, undefined, {}, { "x-http-method-override": "patch" }, "PUT")).code, "invalid-request")
        assert.equal(own.runs, 0)
      })
    })

    test("a duplicate in flight gets 409 with Retry-After", async () => {
      await withApp({ waitMs: 0 }, async (own) => {
        const key = unique("k")
        const first = send(own.url, key, { hold: true })
        await until("the first runs", () => own.runs === 1)
        const second = await send(own.url, key, { hold: true })
        assert.equal(second.code, "in-progress")
        assert.ok(Number(second.headers.get("retry-after")) >= 1)
        assert.equal((await send(own.url, key, { hold: true, body: "other" })).code, "key-reused")
        own.goOn()
        assert.equal((await first).status, 201)
        assert.equal((await send(own.url, key, { hold: true })).replayed, true)
      })
    })

    test("a key belongs to its caller", async () => {
      const key = unique("k")
      const callers: Record<string, string>[] = [
        {},
        { authorization: "Bearer a" },
        { authorization: "Bearer b" },
        { "x-api-key": "a" },
        { authorization: "Bearer a", "x-api-key": "a" },
        { authorization: "Bearer c", cookie: "s=1" },
      ]
      for (const caller of callers) assert.equal((await send(app.url, key, {}, caller)).replayed, false)
      for (const caller of callers) assert.equal((await send(app.url, key, {}, caller)).replayed, true)
      assert.equal((await send(app.url, key, {}, { authorization: "Bearer " })).replayed, true)
      for (const caller of [{ cookie: "s=1" }, { cookie: "s=1", authorization: "Basic YTpi" }]) {
        assert.equal((await send(app.url, key, {}, caller)).code, "scope-missing")
      }
      await withApp({ scope: { cookie: "s" } }, async (own) => {
        assert.equal((await send(own.url, key, {}, { cookie: "t=2; s=1" })).replayed, false)
        assert.equal((await send(own.url, key, {}, { cookie: "s=1" })).replayed, true)
        assert.equal((await send(own.url, key, {}, { cookie: "s=2" })).replayed, false)
        assert.equal((await send(own.url, key, {}, { cookie: "t=1" })).code, "scope-missing")
      })
      await withApp({ scope: { header: "X-User" } }, async (own) => {
        assert.equal((await send(own.url, key, {}, { "x-user": "1" })).replayed, false)
        assert.equal((await send(own.url, key, {}, { "x-user": "1", cookie: "a=b" })).replayed, true)
        assert.equal((await send(own.url, key)).code, "scope-missing")
      })
    })

    test("what is not stored may run again", async () => {
      for (const status of [401, 403, 408, 425, 429, 500, 503]) {
        const key = unique("k")
        assert.equal((await send(app.url, key, { status })).status, status)
        await send(app.url, key, { status })
        assert.equal(app.attempts.at(-1), "2 true", String(status))
      }
      const [failing, never] = [unique("k"), unique("k")]
      assert.equal((await send(app.url, failing, { fail: true })).status, 500)
      assert.equal((await send(app.url, failing, { fail: true })).status, 500)
      assert.equal(app.attempts.at(-1), "2 true")
      const first = await send(app.url, never, { headers: { "idempotency-store": "never" } })
      assert.equal(first.headers.get("idempotency-store"), null)
      assert.equal((await send(app.url, never, { headers: { "idempotency-store": "never" } })).replayed, false)
      await withApp({ verdicts: { 404: "give-back", 500: "keep" } }, async (own) => {
        for (const [status, replayed] of [[404, false], [500, true]] as const) {
          const key = unique("k")
          await send(own.url, key, { status })
          assert.equal((await send(own.url, key, { status })).replayed, replayed)
        }
      })
    })

    test("502 and 504 leave the outcome unknown", async () => {
      for (const status of [502, 504]) {
        const key = unique("k")
        assert.equal((await send(app.url, key, { status })).status, status)
        assert.equal((await send(app.url, key, { status })).code, "outcome-unknown")
      }
    })

    test("an answer that is too large is passed on and not run again", async () => {
      await withApp({ maxBodyBytes: 1000 }, async (own) => {
        for (const wanted of [{ size: 1001 }, { pieceSize: 600 }, { headers: { "content-type": "text/event-stream" }, pieces: ["data: 1\n\n"] }]) {
          const key = unique("k")
          const first = await send(own.url, key, wanted)
          assert.ok(first.status === 201 && first.bytes.length > 5)
          const again = await send(own.url, key, wanted)
          assert.equal(again.code, "response-not-kept")
          assert.equal((JSON.parse(again.bytes.toString()) as { original_status: number }).original_status, 201)
        }
        const fits = unique("k")
        await send(own.url, fits, { size: 1000 })
        assert.equal((await send(own.url, fits, { size: 1000 })).bytes.length, 1000)
        const runs = own.runs
        assert.equal((await send(own.url, unique("k"), { body: "x".repeat(1000) })).code, "payload-too-large")
        assert.equal(own.runs, runs)
      })
      // Quotes double in JSON, so that the server refuses the request that would store them.
      const key = unique("k")
      const quotes = { body: '"'.repeat(300_000) }
      await withApp({ maxBodyBytes: 4 * 1024 * 1024 }, async (own) => {
        assert.equal((await send(own.url, key, { size: 1024 * 1024 })).bytes.length, 1024 * 1024)
        assert.equal((await send(own.url, key, { size: 1024 * 1024 })).code, "response-not-kept")
        const text = unique("k")
        await send(own.url, text, quotes)
        assert.equal((await send(own.url, text, quotes)).bytes.length, 300_000)
      })
    })

    test("a client that leaves does not stop the run", async () => {
      await withApp({ waitMs: 60_000 }, async (own) => {
        const key = unique("k")
        const leave = new AbortController()
        const wanted = JSON.stringify({ hold: true, body: "done" })
        const init = { method: "POST", headers: { "content-type": "application/json", "idempotency-key": key }, body: wanted }
        const first = fetch(own.url, { ...init, signal: leave.signal }).catch(() => "left")
        await until("the first runs", () => own.runs === 1)
        leave.abort()
        assert.equal(await first, "left")
        const second = send(own.url, key, wanted)
        own.goOn()
        assert.deepEqual([(await second).bytes.toString(), (await second).replayed, own.runs], ["done", true, 1])
      })
    })

    test("a client that leaves before its run begins gets the run's answer later", async () => {
      let claim = () => {}
      const held = new Promise<void>((resolve) => (claim = resolve))
      let calls = 0
      const slow = server.client({ fetch: async (...call) => ((calls += 1), await held, fetch(...call)) })
      await withApp({ client: slow, waitMs: 60_000 }, async (own) => {
        const key = unique("k")
        const leave = new AbortController()
        const wanted = JSON.stringify({ body: "done" })
        const init = { method: "POST", headers: { "content-type": "application/json", "idempotency-key": key }, body: wanted }
        const first = fetch(own.url, { ...init, signal: leave.signal }).catch(() => "left")
        await until("the first asks for its key", () => calls > 0)
        leave.abort()
        assert.equal(await first, "left")
        // Another connection, so that the service has noticed that the first one is gone.
        await send(own.url, undefined)
        claim()
        const second = await send(own.url, key, wanted)
        assert.deepEqual([second.status, second.bytes.toString(), own.runs], [201, "done", 2])
      })
    })

    test("a store that is away is 503, or runs unprotected where that is allowed", async () => {
      const away = connect({ url: server.url, fetch: () => Promise.reject(new TypeError("fetch failed")), retryForMs: 0 })
      const events: string[] = []
      await withApp({ client: away, storeTimeoutMs: 50, onEvent: (event) => events.push(event) }, async (own) => {
        const refused = await send(own.url, unique("k"))
        assert.deepEqual([refused.code, own.runs], ["store-unavailable", 0])
      })
      await withApp({ client: away, storeTimeoutMs: 50, onStoreError: "open", onEvent: (event) => events.push(event) }, async (own) => {
        const answer = await send(own.url, unique("k"), { body: "ran" })
        assert.deepEqual([answer.bytes.toString(), answer.headers.get("hapax-unprotected")], ["ran", "store-unavailable"])
      })
      assert.deepEqual(events, ["store-error", "unprotected"])
    })

    test("an answer is sent and stored later if the store is away at its end", async () => {
      let isAway = false
      const flaky: typeof fetch = (input, init) => (isAway ? Promise.reject(new TypeError("fetch failed")) : fetch(input, init))
      await withApp({ client: server.client({ fetch: flaky }), storeTimeoutMs: 300 }, async (own) => {
        const key = unique("k")
        const first = send(own.url, key, { hold: true })
        await until("the first runs", () => own.runs === 1)
        isAway = true
        own.goOn()
        assert.equal((await first).status, 201)
        isAway = false
        // Until the background has stored it, a retry waits or is told to come again; it never runs.
        await until("the answer is stored", async () => (await send(own.url, key, { hold: true })).replayed)
        assert.equal(own.runs, 1)
      })
    })

    test("an attempt that was taken over answers with its successor's answer", async () => {
      await withApp({ leaseMs: 300, renewForMs: 0, onUnknown: "rerun" }, async (own) => {
        const key = unique("k")
        const first = send(own.url, key, { hold: true })
        await until("the first runs", () => own.runs === 1)
        const second = send(own.url, key, { hold: true })
        await until("the second runs", () => own.runs === 2)
        own.goOn()
        const answers = await Promise.all([first, second])
        const bodies = answers.map(({ bytes, code }) => code ?? bytes.toString())
        assert.deepEqual(bodies[1], "run 2")
        assert.ok(["run 2", "in-progress"].includes(bodies[0] ?? ""), bodies[0])
      })
    })

    test("drain refuses new requests and waits for the running ones", async () => {
      await withApp({}, async (own) => {
        const key = unique("k")
        const first = send(own.url, key, { hold: true }).catch(() => "cut")
        await until("the first runs", () => own.runs === 1)
        let drained = false
        const drain = own.drain().then(() => (drained = true))
        const refused = await send(own.url, unique("k"), {}, { connection: "close" }).catch(() => undefined)
        assert.ok(refused === undefined || refused.status === 503)
        assert.equal(drained, false)
        own.goOn()
        await Promise.all([drain, first])
        assert.equal(own.runs, 1)
      })
    })
  })
}
