/** The helpers for node-postgres: everything or nothing, wherever the process dies. */
import assert from "node:assert/strict"
import { execFileSync, spawnSync } from "node:child_process"
import { after, before, describe, test } from "node:test"
import { fileURLToPath } from "node:url"
import pg from "pg"
import * as hapax from "../src/index.js"
import * as sql from "../src/pg.js"
import { PATIENCE_MS, startServer, unique } from "./support.js"
import type { Server } from "./support.js"

const url = process.env["HAPAX_TEST_POSTGRES_URL"]
const worker = fileURLToPath(new URL("./pg-worker.js", import.meta.url))

describe("node-postgres", { skip: url === undefined && "no PostgreSQL" }, () => {
  const table = unique("orders").replaceAll("-", "_")
  let pool: pg.Pool
  let server: Server
  before(async () => {
    execFileSync(process.env["HAPAX_TEST_BIN"] ?? "hapax", ["migrate", "--store", url ?? ""])
    server = await startServer(url ?? "")
    pool = new pg.Pool({ connectionString: url, max: 20 })
    // A killed test server ends connections that wait in the pool.
    pool.on("error", () => {})
    await pool.query(`CREATE TABLE ${table} (id bigserial PRIMARY KEY, item text NOT NULL)`)
  })
  after(async () => {
    await pool.end()
    await server.stop()
  })

  const orders = async (item: string) => Number((await pool.query(`SELECT count(*) FROM ${table} WHERE item = $1`, [item])).rows[0].count)
  const messages = async (key: string) => Number((await pool.query("SELECT count(*) FROM hapax_outbox WHERE key = $1", [key])).rows[0].count)
  const order = (item: string) => async (db: sql.Queryable) => {
    const { rows } = await db.query(`INSERT INTO ${table} (item) VALUES ($1) RETURNING id`, [item])
    await sql.enqueue(db, "orders", item, { id: rows[0].id })
    return { item }
  }

  test("once: 64 concurrent calls make one order, one answer, one message", async () => {
    const key = unique("order")
    const calls = Array.from({ length: 64 }, () => sql.once(pool, "CreateOrder", key, order(key), { input: { key }, waitMs: PATIENCE_MS }))
    const results = await Promise.all(calls)
    assert.deepEqual([await orders(key), await messages(key)], [1, 1])
    assert.equal(results.filter(({ replayed }) => !replayed).length, 1)
    for (const { value } of results) assert.deepEqual(value, { item: key })
    await assert.rejects(sql.once(pool, "CreateOrder", key, order(key), { input: "other" }), hapax.KeyReused)
  })

  test("once: every isolation level, with concurrent calls", async () => {
    for (const isolation of ["repeatable read", "serializable"] as const) {
      const key = unique("order")
      const calls = Array.from({ length: 8 }, () => sql.once(pool, "CreateOrder", key, order(key), { isolation, waitMs: PATIENCE_MS, attempts: 100 }))
      await Promise.all(calls)
      assert.equal(await orders(key), 1)
    }
  })

  test("once: a function that throws leaves nothing, and the next call runs", async () => {
    const key = unique("order")
    const failing = sql.once(pool, "CreateOrder", key, async (db) => {
      await order(key)(db)
      throw new RangeError("no tea")
    })
    await assert.rejects(failing, RangeError)
    assert.deepEqual([await orders(key), await messages(key)], [0, 0])
    assert.equal((await sql.once(pool, "CreateOrder", key, order(key))).replayed, false)
  })

  test("a command completed by SQL is replayed over HTTP, and the other way round", async () => {
    const client = server.client()
    const [first, second] = [unique("order"), unique("order")]
    await sql.once(pool, "CreateOrder", first, order(first))
    assert.deepEqual(await client.once("CreateOrder", first, () => assert.fail("ran")), { value: { item: first }, replayed: true })
    await client.once("CreateOrder", second, () => "over HTTP")
    assert.deepEqual(await sql.once(pool, "CreateOrder", second, () => assert.fail("ran")), { value: "over HTTP", replayed: true })
    await client.once("CreateOrder", unique("order"), async () => {}, {})
  })

  test("begin: states, and steps by hand", async () => {
    const key = unique("order")
    const client = await pool.connect()
    try {
      await client.query("BEGIN")
      const begun = await sql.begin(client, "Pay", key)
      assert.ok(begun.state === "granted" && begun.attempt === 1 && begun.fence > 0)
      assert.equal((await sql.begin(pool, "Pay", key)).state, "in-progress")
      await assert.rejects(sql.complete(client, "Pay", key, "wrong", { status: 200, headers: {}, body: new Uint8Array() }), hapax.Lost)
      await sql.fail(client, "Pay", key, begun.token)
      await client.query("COMMIT")
      await client.query("BEGIN")
      const again = await sql.begin(client, "Pay", key)
      assert.ok(again.state === "granted" && again.attempt === 2)
      const body = new Uint8Array([0, 255, 1])
      await sql.complete(client, "Pay", key, again.token, { status: 201, headers: { "x-many": ["a", "b"] }, body })
      await client.query("COMMIT")
      const done = await sql.begin(pool, "Pay", key)
      assert.ok(done.state === "completed")
      assert.deepEqual([done.response.status, [...done.response.body]], [201, [0, 255, 1]])
      assert.deepEqual(done.response.headers["x-many"], ["a", "b"])
      assert.equal((await sql.begin(pool, "Pay", key, { fingerprint: "other" })).state, "reused")
    } finally {
      client.release()
    }
  })

  test("receive: a message has one effect for each consumer", async () => {
    const id = unique("message")
    assert.equal(await sql.receive(pool, "billing", id), true)
    assert.equal(await sql.receive(pool, "billing", id), false)
    assert.equal(await sql.receive(pool, "mailing", id), true)
  })

  test("bad input and a database without hapax are typed errors", async () => {
    await assert.rejects(sql.begin(pool, "", "k"), hapax.InvalidRequest)
    await assert.rejects(sql.begin(pool, "Pay", "k", { tenant: "a/b" }), hapax.InvalidRequest)
    await assert.rejects(sql.once(pool, "Pay", "k", order("x"), { isolation: "snapshot" as "serializable" }), hapax.InvalidRequest)
    const away = new pg.Pool({ connectionString: "postgres://127.0.0.1:9/none" })
    await assert.rejects(sql.once(away, "Pay", "k", order("x"), { attempts: 1 }), hapax.StoreUnavailable)
    await away.end()
    const name = unique("empty").replaceAll("-", "_")
    await pool.query(`CREATE DATABASE ${name}`)
    const other = new URL(url ?? "")
    other.pathname = `/${name}`
    const empty = new pg.Pool({ connectionString: other.href })
    await assert.rejects(sql.once(empty, "Pay", "k", order("x")), /hapax migrate/)
    await empty.end()
  })

  test("answerOnce: the layer's answers, in one transaction", async () => {
    const key = unique("k")
    const request = (body: string, headers: Record<string, string> = { "idempotency-key": key }): sql.KeyedRequest => ({
      head: { method: "POST", path: "/orders", query: "", values: (name) => (headers[name] === undefined ? [] : [headers[name] ?? ""]) },
      body: Buffer.from(body),
    })
    const create = (status: number) => async (db: sql.Queryable) => ({ status, body: await order(key)(db) })
    const send = async (body: string, status = 201) => {
      const answer = await sql.answerOnce(pool, request(body), {}, create(status))
      const replayed = answer.headers.some(([name]) => name === "idempotent-replayed")
      return [answer.status, replayed, Buffer.from(answer.body).toString()]
    }
    assert.equal((await send("tea", 503))[0], 503)
    assert.equal(await orders(key), 0)
    assert.deepEqual(await send("tea"), [201, false, JSON.stringify({ item: key })])
    assert.deepEqual(await send("tea"), [201, true, JSON.stringify({ item: key })])
    assert.equal((await send("coffee"))[0], 422)
    assert.equal((await sql.answerOnce(pool, request("tea", {}), { requireKey: true }, create(201))).status, 400)
    assert.deepEqual([await orders(key), await messages(key)], [1, 1])
  })

  test("a client killed between any two statements leaves everything or nothing", async () => {
    let kills = 0
    for (let statement = 1; ; statement++) {
      const key = unique("order")
      const run = (killAt: number) => spawnSync(process.execPath, [worker, url ?? "", table, key, String(killAt)], { encoding: "utf8", timeout: PATIENCE_MS })
      const killed = run(statement)
      const isDone = killed.signal !== "SIGKILL"
      if (isDone) assert.equal(killed.status, 0, killed.stderr)
      else kills += 1
      assert.ok((await orders(key)) <= 1)
      const retried = run(0)
      assert.equal(retried.status, 0, retried.stderr)
      assert.deepEqual([await orders(key), await messages(key)], [1, 1], `killed at statement ${statement}`)
      if (isDone) break
    }
    // Before and after each of: BEGIN, SET, begin, INSERT, enqueue, complete, COMMIT.
    assert.equal(kills, 14)
  })
})
