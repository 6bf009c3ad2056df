/** Every feature against the real server, on every store. */
import assert from "node:assert/strict"
import { fork } from "node:child_process"
import { appendFileSync, existsSync, readFileSync } from "node:fs"
import { join } from "node:path"
import { after, before, describe, test } from "node:test"
import { fileURLToPath } from "node:url"
import { Busy, EventRefused, KeyReused, Lost, OutcomeUnknown, VersionMismatch } from "../src/index.js"
import type { Client, Followed, JobEvent } from "../src/index.js"
import { aborted, collect, mkdtemp, startServer, stores, unique, until } from "./support.js"
import type { Server } from "./support.js"

const worker = fileURLToPath(new URL("./once-worker.js", import.meta.url))

for (const [store, url] of stores()) {
  describe(store, () => {
    let server: Server
    let client: Client
    before(async () => {
      server = await startServer(url)
      client = server.client()
    })
    after(() => server.stop())

    test("once: 64 concurrent calls run once", async () => {
      let runs = 0
      const call = () =>
        client.once("CreateOrder", key, async (run) => {
          runs += 1
          assert.equal(run.attempt, 1)
          await new Promise((resolve) => setTimeout(resolve, 20))
          return { order: 17, at: new Date(0) }
        }, { input: { cups: 2, item: "tea" }, waitMs: 60_000 })
      const key = unique("order")
      const results = await Promise.all(Array.from({ length: 64 }, call))
      assert.equal(runs, 1)
      for (const { value } of results) assert.deepEqual(value, { order: 17, at: "1970-01-01T00:00:00.000Z" })
      assert.equal(results.filter(({ replayed }) => !replayed).length, 1)
    })

    test("once: 64 calls of four processes run once", async () => {
      const key = unique("order")
      const log = join(mkdtemp(), "runs")
      const ended = Array.from({ length: 4 }, () => {
        const child = fork(worker, [server.url, key, log, "16"])
        return new Promise((resolve) => child.on("exit", resolve))
      })
      assert.deepEqual(await Promise.all(ended), [0, 0, 0, 0])
      assert.equal(readFileSync(log, "utf8"), "ran\n")
    })

    test("once: a killed owner leaves the outcome unknown", async () => {
      const key = unique("order")
      const log = join(mkdtemp(), "runs")
      const child = fork(worker, [server.url, key, log, "1", "hang"])
      await until("the worker runs", () => existsSync(log))
      child.kill("SIGKILL")
      const again = (onUnknown: "refuse" | "rerun") =>
        client.once("CreateOrder", key, ({ attempt }) => attempt, { onUnknown, waitMs: 60_000 })
      await assert.rejects(again("refuse"), OutcomeUnknown)
      assert.deepEqual(await again("rerun"), { value: 2, replayed: false })
      assert.deepEqual(await again("refuse"), { value: 2, replayed: true })
    })

    test("once: a function that throws may run again", async () => {
      const key = unique("order")
      const failing = client.once("Pay", key, () => {
        throw new RangeError("no money")
      })
      await assert.rejects(failing, RangeError)
      const paid = await client.once("Pay", key, ({ attempt }) => attempt)
      assert.deepEqual(paid, { value: 2, replayed: false })
    })

    test("once: another input under the same key is refused", async () => {
      const key = unique("order")
      await client.once("Pay", key, () => 1, { input: { a: 1, b: 2 } })
      const same = await client.once("Pay", key, () => 2, { input: { b: 2, a: 1 } })
      assert.equal(same.replayed, true)
      await assert.rejects(client.once("Pay", key, () => 2, { input: { a: 1 } }), KeyReused)
    })

    test("once: a function may say that its outcome is unknown", async () => {
      const key = unique("order")
      const unsure = client.once("Pay", key, () => {
        throw new OutcomeUnknown("the bank did not answer")
      })
      await assert.rejects(unsure, /the bank did not answer/)
      await until("the short lease has ended", async () => {
        const error: unknown = await client.once("Pay", key, () => 1, { waitMs: 0 }).catch((error: unknown) => error)
        assert.ok(error instanceof OutcomeUnknown || error instanceof Busy)
        return error instanceof OutcomeUnknown
      })
    })

    test("once: a result that is no JSON is an error, and no retry runs", async () => {
      const key = unique("order")
      await assert.rejects(client.once("Pay", key, () => 1n), /cannot be written as JSON/)
      await assert.rejects(client.once("Pay", key, () => 1), OutcomeUnknown)
      const nothing = unique("order")
      assert.equal((await client.once("Pay", nothing, () => undefined)).value, undefined)
      assert.deepEqual(await client.once("Pay", nothing, () => 1), { value: undefined, replayed: true })
    })

    test("once: the lease is renewed while the function runs", async () => {
      let renewals = 0
      const counting: typeof fetch = async (input, init) => {
        const response = await fetch(input, init)
        if (init?.method === "PATCH" && response.ok) renewals += 1
        return response
      }
      const counted = server.client({ fetch: counting })
      const work = () => until("a renewal", () => renewals >= 1)
      // Long enough that a machine which stands still for some seconds does not end the lease.
      await counted.once("Long", unique("job"), work, { leaseMs: 9_000 })
      assert.ok(renewals >= 1)
    })

    test("lock: one owner at a time, with growing fences", async () => {
      const name = unique("lock")
      let [inside, fence] = [0, 0]
      await Promise.all(
        Array.from({ length: 12 }, async () => {
          await using lock = await client.lock(name, { waitMs: 60_000 })
          assert.equal(++inside, 1)
          assert.ok(lock.fence > fence && lock.held && !lock.lost.aborted)
          fence = lock.fence
          await new Promise((resolve) => setTimeout(resolve, 2))
          inside -= 1
        }),
      )
      assert.equal(await client.withLock(name, {}, () => "free again"), "free again")
    })

    test("lock: a held one is Busy, or undefined", async () => {
      const name = unique("lock")
      const lock = await client.lock(name)
      const busy = await client.lock(name).catch((error: unknown) => error)
      assert.ok(busy instanceof Busy && busy.retryable && busy.code === "lock-held")
      assert.ok((busy.retryAfterMs ?? 0) > 0)
      assert.equal(await client.tryLock(name), undefined)
      await lock.release()
      const next = await client.tryLock(name)
      await next?.release()
      assert.ok(next !== undefined && next.fence > lock.fence)
    })

    test("lock: one that is not renewed is lost at its end", async () => {
      const name = unique("lock")
      const lock = await client.lock(name, { ttlMs: 1000, renewForMs: 0 })
      await aborted(lock.lost)
      assert.ok(lock.lost.reason instanceof Lost && !lock.held)
      await using successor = await client.lock(name, { waitMs: 60_000 })
      await assert.rejects(lock.release(), Lost)
      assert.ok(successor.held)
    })

    test("lock: one that was released elsewhere is lost with the next renewal", async () => {
      const name = unique("lock")
      let token = ""
      const listening: typeof fetch = async (input, init) => {
        const response = await fetch(input, init)
        if (init?.method === "POST") token = ((await response.clone().json()) as { token: string }).token
        return response
      }
      await using lock = await server.client({ fetch: listening }).lock(name, { ttlMs: 600 })
      await fetch(`${server.url}/v1/locks/${name}`, { method: "DELETE", headers: { "hapax-token": token } })
      await aborted(lock.lost)
    })

    test("record: versions and conditions", async () => {
      const record = client.record<{ tea: number }>(unique("cart:/?#%"))
      assert.equal(await record.get(), undefined)
      assert.equal(await record.delete(), false)
      const version = await record.put({ tea: 1 }, { ifAbsent: true, ttlMs: 3_600_000 })
      const read = await record.get()
      assert.deepEqual([read?.value, read?.version], [{ tea: 1 }, version])
      assert.ok((read?.expiresInMs ?? 0) > 3_000_000)
      await assert.rejects(record.put({ tea: 2 }, { ifAbsent: true }), VersionMismatch)
      await assert.rejects(record.put({ tea: 2 }, { ifVersion: "another" }), VersionMismatch)
      const patched = await record.patch({ cup: 1 }, { ifVersion: version })
      assert.deepEqual(patched.value, { tea: 1, cup: 1 })
      await assert.rejects(record.delete({ ifVersion: version }), VersionMismatch)
      assert.equal(await record.delete({ ifVersion: patched.version }), true)
    })

    test("record: concurrent updates all count", async () => {
      const record = client.record<number>(unique("counter"))
      const updates = Array.from({ length: 10 }, () => record.update((value) => (value ?? 0) + 1, { attempts: 1000 }))
      await Promise.all(updates)
      assert.equal((await record.get())?.value, 10)
      const contended = record.update(async (value) => {
        await record.update((other) => (other ?? 0) + 100)
        return (value ?? 0) + 1
      }, { attempts: 2 })
      await assert.rejects(contended, Busy)
      assert.equal((await record.get())?.value, 210)
    })

    test("events: published once, followed in order to the end", async () => {
      const job = unique("job")
      const followed = collect(client.follow("scan", job))
      const first = await client.publish("scan", job, "vision", 10, { status: "started" })
      const again = await client.publish("scan", job, "vision", 10, { status: "started" })
      assert.deepEqual([first.published, again.published, again.offset], [true, false, first.offset])
      await assert.rejects(client.publish("scan", job, "vision", 10, {}), EventRefused)
      await client.publish("scan", job, "rule", 20, null)
      await client.publish("scan", job, "end-of-job", 30, { points: 10 }, { final: true })
      await assert.rejects(client.publish("scan", job, "late", 31, null), EventRefused)
      const events = (await followed) as JobEvent[]
      assert.deepEqual(events.map(({ kind, stage, seq, offset }) => [kind, stage, seq, offset]), [
        ["event", "vision", 10, 1],
        ["event", "rule", 20, 2],
        ["event", "end-of-job", 30, 3],
      ])
      assert.deepEqual(events[2]?.data, { points: 10 })
      const lastEventId = events[0]?.id
      const rest = await collect(client.follow("scan", job, { lastEventId }))
      assert.deepEqual(rest, events.slice(1))
      assert.deepEqual(await collect(client.follow("scan", job, { lastEventId: events[2]?.id })), [])
      const state = await client.job("scan", job)
      assert.deepEqual([state?.closed, state?.state.stage, state?.offset], [true, "end-of-job", 3])
      assert.equal(await client.job("scan", unique("job")), undefined)
    })

    test("follow: resumes after every cut, without loss or repetition", async () => {
      const job = unique("job")
      let connections = 0
      // Each connection delivers one event and is then cut in the middle of the stream.
      const cutting: typeof fetch = async (input, init) => {
        const response = await fetch(input, init)
        if (response.body === null || !String(input).includes("/jobs/")) return response
        connections += 1
        const cutter = new TransformStream<Uint8Array, Uint8Array>({
          transform(chunk, controller) {
            controller.enqueue(chunk)
            if (new TextDecoder().decode(chunk).includes("data:")) controller.error(new TypeError("cut"))
          },
        })
        return new Response(response.body.pipeThrough(cutter), { status: response.status })
      }
      const publish = (seq: number) => client.publish("scan", job, "step", seq, seq, { final: seq === 5 })
      await publish(1)
      const seen: Followed[] = []
      for await (const event of server.client({ fetch: cutting }).follow("scan", job)) {
        seen.push(event)
        if (seen.length < 5) await publish(seen.length + 1)
      }
      assert.ok(connections >= 2)
      assert.deepEqual(seen.map((event) => (event as JobEvent).seq), [1, 2, 3, 4, 5])
    })

    test("follow: tells gaps", async () => {
      const job = unique("job")
      await client.publish("scan", job, "one", 1, {})
      await client.publish("scan", job, "two", 2, {}, { final: true })
      const strange = await collect(client.follow("scan", job, { lastEventId: "1-1" }))
      assert.deepEqual(strange.map(({ kind }) => kind), ["gap", "snapshot", "event", "event"])
      const stop = new AbortController()
      for await (const event of client.follow("scan", unique("job"), { lastEventId: "1-7", signal: stop.signal })) {
        assert.deepEqual(event, { kind: "gap", from: 8, to: null })
        stop.abort()
      }
    })

    test("inbox: one effect for each message and consumer", async () => {
      const id = unique("message")
      const effects: string[] = []
      const receive = (consumer: string) =>
        client.inbox(consumer).once(id, ({ attempt }) => {
          effects.push(`${consumer} ${attempt}`)
          return effects.length
        })
      const failing = client.inbox("billing").once(id, () => {
        throw new RangeError("no invoice")
      })
      await assert.rejects(failing, RangeError)
      assert.deepEqual(await receive("billing"), { duplicate: false, value: 1 })
      assert.deepEqual(await receive("billing"), { duplicate: true })
      assert.deepEqual(await receive("mailing"), { duplicate: false, value: 2 })
      assert.deepEqual(effects, ["billing 2", "mailing 1"])
      const other = unique("message")
      await client.inbox("billing").once(other, () => assert.rejects(client.inbox("billing").once(other, () => {}), Busy))
    })
  })
}

test("follow: continues when the server was killed and is back", async () => {
  const folder = mkdtemp()
  const store = `sqlite:${join(folder, "hapax.db")}`
  let server = await startServer(store)
  const job = unique("job")
  const seen: number[] = []
  try {
    await server.client().publish("scan", job, "step", 1, {})
    const listen = new URL(server.url).host
    for await (const event of server.client().follow("scan", job)) {
      assert.equal(event.kind, "event")
      seen.push((event as JobEvent).seq)
      if (seen.length > 1) continue
      await server.stop()
      server = await startServer(store, [], listen)
      await server.client().publish("scan", job, "step", 2, {}, { final: true })
    }
  } finally {
    await server.stop()
  }
  assert.deepEqual(seen, [1, 2])
  appendFileSync(join(folder, "done"), "")
})
