/** Wrong arguments, servers that are away, old or foreign, and tokens without rights are typed errors; nothing stays claimed. */
import assert from "node:assert/strict"
import { execFileSync } from "node:child_process"
import { writeFileSync } from "node:fs"
import { createServer } from "node:http"
import type { RequestListener } from "node:http"
import type { AddressInfo } from "node:net"
import { join } from "node:path"
import { after, before, test } from "node:test"
import * as hapax from "../src/index.js"
import type { Client } from "../src/index.js"
import { mkdtemp, startServer, unique, until } from "./support.js"
import type { Server } from "./support.js"

let server: Server
let client: Client
before(async () => {
  server = await startServer(`sqlite:${join(mkdtemp(), "hapax.db")}`)
  client = server.client()
})
after(() => server.stop())

/** An address at which nothing listens. */
async function freeAddress(): Promise<string> {
  const listener = createServer()
  await new Promise<void>((resolve) => listener.listen(0, "127.0.0.1", resolve))
  const { port } = listener.address() as AddressInfo
  await new Promise((resolve) => listener.close(resolve))
  return `http://127.0.0.1:${port}`
}

/** Runs a test against a server of our own, which answers as it is told. */
async function withStub(listener: RequestListener, run: (url: string) => Promise<void>): Promise<void> {
  const stub = createServer(listener)
  await new Promise<void>((resolve) => stub.listen(0, "127.0.0.1", resolve))
  try {
    await run(`http://127.0.0.1:${(stub.address() as AddressInfo).port}`)
  } finally {
    stub.closeAllConnections()
    stub.close()
  }
}

test("connect refuses what is no server's address", () => {
  for (const url of ["", "hapax", "redis://h", "http://u:p@h", "http://h?x=1", 7 as unknown as string]) {
    assert.throws(() => hapax.connect({ url }), hapax.InvalidRequest)
  }
  assert.throws(() => hapax.connect({ url: server.url, token: "two words" }), hapax.InvalidRequest)
  assert.throws(() => hapax.connect({ url: server.url, timeoutMs: 0 }), hapax.InvalidRequest)
})

test("wrong arguments are InvalidRequest, before anything is sent", async () => {
  const silent = hapax.connect({ url: server.url, fetch: () => assert.fail("a request was sent") })
  const wrong = "x" as unknown as number
  const calls: [string, () => unknown][] = [
    ["name", () => silent.lock("")],
    ["name", () => silent.lock("ü")],
    ["name", () => silent.lock("a b")],
    ["name", () => silent.lock("..")],
    ["name", () => silent.lock("x".repeat(256))],
    ["name", () => silent.lock(undefined as unknown as string)],
    ["ttlMs", () => silent.lock("a", { ttlMs: wrong })],
    ["ttlMs", () => silent.lock("a", { ttlMs: 1.5 })],
    ["ttlMs", () => silent.lock("a", { ttlMs: 3_600_001 })],
    ["waitMs", () => silent.lock("a", { waitMs: -1 })],
    ["operation", () => silent.once("", "k", () => 1)],
    ["key", () => silent.once("a", 5 as unknown as string, () => 1)],
    ["leaseMs", () => silent.once("a", "k", () => 1, { leaseMs: 0 })],
    ["onUnknown", () => silent.once("a", "k", () => 1, { onUnknown: "maybe" as "refuse" })],
    ["work", () => silent.once("a", "k", undefined as unknown as () => 1)],
    ["JSON", () => silent.once("a", "k", () => 1, { input: 1n })],
    ["not both", () => silent.once("a", "k", () => 1, { input: 1, fingerprint: "x" })],
    ["JSON", async () => silent.record("r").put(undefined)],
    ["not both", async () => silent.record("r").put(1, { ifAbsent: true, ifVersion: "1" })],
    ["ifVersion", async () => silent.record("r").put(1, { ifVersion: 'a"b' })],
    ["ttlMs", async () => silent.record("r").put(1, { ttlMs: 0 })],
    ["key", async () => silent.record("").get()],
    ["seq", () => silent.publish("a", "b", "c", -1, {})],
    ["data", () => silent.publish("a", "b", "c", 1, undefined)],
    ["jobId", () => silent.follow("a", "").next()],
    ["consumer", async () => silent.inbox("").once("m", () => {})],
    ["messageId", () => silent.inbox("c").once("", () => {})],
  ]
  for (const [field, call] of calls) {
    const error: unknown = await Promise.resolve().then(call).catch((error: unknown) => error)
    assert.ok(error instanceof hapax.InvalidRequest, `${field}: ${String(error)}`)
    assert.ok(error.message.includes(field), `${field}: ${error.message}`)
    assert.equal(error.retryable, false)
  }
})

test("names that look like paths reach the server as they are", async () => {
  for (const name of ["...", "a/b", "a%2fb", "a?b#c", "~"]) {
    const lock = await client.lock(name)
    await lock.release()
    await client.record(name).put(name)
    assert.equal((await client.record(name).get())?.value, name)
  }
})

test("a server that is away is StoreUnavailable, and says what to do", async () => {
  const away = hapax.connect({ url: await freeAddress(), retryForMs: 300 })
  const run = () => assert.fail("ran")
  const calls = [away.lock("a"), away.once("a", "k", run), away.record("r").put(1), away.publish("a", "b", "c", 1, 1)]
  for (const call of await Promise.allSettled(calls)) {
    const error: unknown = call.status === "rejected" ? call.reason : undefined
    assert.ok(error instanceof hapax.StoreUnavailable && error.retryable)
    assert.match(error.message, /no hapax server answers at 127.0.0.1:\d+; start one/)
  }
  const follow = away.follow("a", "b", { giveUpAfterMs: 0 })
  await assert.rejects(follow.next(), hapax.StoreUnavailable)
})

test("a server that never answers is StoreUnavailable after the timeout", async () => {
  await withStub(() => {}, async (url) => {
    const silent = hapax.connect({ url, timeoutMs: 100, retryForMs: 0 })
    await assert.rejects(silent.lock("a"), { name: "StoreUnavailable", code: "no-answer", retryable: true })
    await assert.rejects(silent.record("r").put(1), { name: "OutcomeUnknown" })
  })
})

test("a foreign or an old server is IncompatibleServer", async () => {
  const page: RequestListener = (_, response) => response.writeHead(404).end("<html>")
  await withStub(page, async (url) => {
    await assert.rejects(hapax.connect({ url }).lock("a"), /older than this package/)
    await assert.rejects(hapax.connect({ url }).record("r").get(), hapax.IncompatibleServer)
  })
  const text: RequestListener = (_, response) => response.writeHead(200).end("hello")
  await withStub(text, async (url) => {
    await assert.rejects(hapax.connect({ url }).once("a", "k", () => assert.fail("ran")), hapax.IncompatibleServer)
  })
})

test("a token that is missing, wrong or without the scope is AccessDenied", async () => {
  const folder = mkdtemp()
  const binary = process.env["HAPAX_TEST_BIN"] ?? "hapax"
  const printed = execFileSync(binary, ["token", "new", "--name", "watcher", "--scope", "metrics"], { encoding: "utf8" })
  const lines = printed.split("\n")
  const config = printed.slice(printed.indexOf("[[token]]"))
  const token = lines.map((line) => line.trim()).find((line) => /^[A-Za-z0-9_-]{20,}$/.test(line)) ?? /([A-Za-z0-9_-]{30,})/.exec(printed)?.[1]
  writeFileSync(join(folder, "hapax.toml"), config)
  const guarded = await startServer("memory:", ["--config", join(folder, "hapax.toml")])
  try {
    for (const options of [{}, { token: "wrong" }, { token }]) {
      const error: unknown = await guarded.client(options).lock("a").catch((error: unknown) => error)
      assert.ok(error instanceof hapax.AccessDenied, String(error))
      assert.match(error.message, /hapax token new/)
      assert.ok(!error.retryable && !error.message.includes(token ?? "?"))
      await assert.rejects(guarded.client(options).follow("a", "b").next(), hapax.AccessDenied)
    }
  } finally {
    await guarded.stop()
  }
})

test("an overloaded server is asked again after Retry-After", async () => {
  const asked: number[] = []
  const listener: RequestListener = (_, response) => {
    asked.push(performance.now())
    const problem = { type: "x/overloaded", title: "no room", status: 503, detail: "", retryable: true, retry_after_ms: 300 }
    if (asked.length < 3) response.writeHead(503, { "content-type": "application/problem+json" }).end(JSON.stringify(problem))
    else response.writeHead(201, { etag: '"7"' }).end("")
  }
  await withStub(listener, async (url) => {
    assert.equal(await hapax.connect({ url }).record("r").put(1), "7")
    assert.equal(asked.length, 3)
    assert.ok((asked[1] ?? 0) - (asked[0] ?? 0) >= 295)
  })
})

test("update does not apply a change twice when an answer is lost", async () => {
  const key = unique("counter")
  const losing: typeof fetch = async (input, init) => {
    const response = await fetch(input, init)
    if (init?.method === "PUT") throw new TypeError("fetch failed")
    return response
  }
  const update = server.client({ fetch: losing }).record<number>(key).update((value) => (value ?? 0) + 1)
  await assert.rejects(update, hapax.OutcomeUnknown)
  assert.equal((await client.record(key).get())?.value, 1)
})

test("a publish, a completion and a release whose answers are lost are made again", async () => {
  let lost = 0
  const losing: typeof fetch = async (input, init) => {
    const response = await fetch(input, init)
    if ((init?.method === "PUT" || init?.method === "DELETE" || String(input).endsWith("/events")) && lost++ % 2 === 0) {
      throw new TypeError("fetch failed")
    }
    return response
  }
  const unlucky = server.client({ fetch: losing })
  const job = unique("job")
  assert.equal((await unlucky.publish("scan", job, "one", 1, {})).published, false)
  const key = unique("order")
  assert.deepEqual(await unlucky.once("Pay", key, () => "paid"), { value: "paid", replayed: false })
  assert.deepEqual(await client.once("Pay", key, () => "twice"), { value: "paid", replayed: true })
  const name = unique("lock")
  await (await unlucky.lock(name)).release()
  await (await client.lock(name)).release()
  assert.ok(lost >= 6)
})

test("a call that is aborted leaves nothing claimed", async () => {
  const [name, key] = [unique("lock"), unique("order")]
  const holder = await client.lock(name)
  const stop = new AbortController()
  const waiting = client.lock(name, { waitMs: 60_000, signal: stop.signal })
  stop.abort(new RangeError("enough"))
  await assert.rejects(waiting, RangeError)
  await holder.release()
  await until("the lock is free", async () => {
    const lock = await client.tryLock(name)
    await lock?.release()
    return lock !== undefined
  })
  const aborted = client.once("Pay", key, () => assert.fail("ran"), { signal: AbortSignal.abort(new RangeError("no")) })
  await assert.rejects(aborted, RangeError)
  assert.equal((await client.once("Pay", key, ({ attempt }) => attempt)).value, 1)
})

test("errors and their causes name neither keys nor values nor tokens", async () => {
  const secret = "uf00d-secret"
  const errors: unknown[] = []
  const keep = (error: unknown) => errors.push(error)
  const away = hapax.connect({ url: await freeAddress(), retryForMs: 0, token: secret })
  await away.lock(secret).catch(keep)
  await client.once(secret, secret, () => 1, { input: 1 })
  await client.once(secret, secret, () => 1, { input: secret }).catch(keep)
  await client.record(secret).put(secret, { ifVersion: secret }).catch(keep)
  await client.lock(`${secret}\n`).catch(keep)
  assert.equal(errors.length, 4)
  for (const error of errors) assert.ok(!String((error as Error).stack).includes(secret), String(error))
})
