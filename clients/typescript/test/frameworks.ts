/** The same service on every framework, for the tests of the middlewares. */
import { Buffer } from "node:buffer"
import { createServer } from "node:http"
import type { Server as HttpServer } from "node:http"
import type { AddressInfo } from "node:net"
import { Readable } from "node:stream"
import { setTimeout as sleep } from "node:timers/promises"
import { serve } from "@hono/node-server"
import express from "express"
// @ts-expect-error: the alias has no types of its own
import express4 from "express4"
import fastify4 from "fastify"
import { Hono } from "hono"
import type { IdempotencyOptions } from "../src/idempotency/gate.js"
import { idempotency as forExpress } from "../src/express.js"
import { idempotency as forFastify } from "../src/fastify.js"
import { idempotency as forHono } from "../src/hono.js"

/** The answer that a request asks the service for. */
export interface Wanted {
  status?: number
  headers?: Record<string, string | string[]>
  /** The answer's body; by default the number of this run. */
  body?: string
  /** Bytes that are not text, beside `body`. */
  binary?: boolean
  /** A body of so many letters. */
  size?: number
  /** In pieces, with pauses between. */
  pieces?: string[]
  /** Two pieces of so many letters. */
  pieceSize?: number
  /** Held back until the service is told to go on. */
  hold?: boolean
  fail?: boolean
}

/** The requests that the service has seen. */
export interface Seen {
  runs: number
  attempts: string[]
  /** Lets held requests go on. */
  goOn: () => void
  url: string
  drain: () => Promise<void>
  stop: () => Promise<void>
}

interface Planned {
  status: number
  headers: Record<string, string | string[]>
  pieces: Buffer[]
  isStreamed: boolean
}

class Service {
  runs = 0
  attempts: string[] = []
  goOn: () => void = () => {}
  #held = new Promise<void>((resolve) => (this.goOn = resolve))

  async answer(wanted: Wanted, attempt: unknown, fence: unknown): Promise<Planned> {
    this.runs += 1
    this.attempts.push(`${String(attempt)} ${Number(fence) > 0}`)
    if (wanted.hold) await this.#held
    if (wanted.fail) throw new Error("the handler failed")
    const body = wanted.size === undefined ? (wanted.body ?? `run ${this.runs}`) : "x".repeat(wanted.size)
    const whole = wanted.binary ? Buffer.from([0, 255, 254, 13, 10, 128]) : Buffer.from(body)
    const texts = wanted.pieceSize === undefined ? wanted.pieces : ["x".repeat(wanted.pieceSize), "y".repeat(wanted.pieceSize)]
    const pieces = texts?.map((piece) => Buffer.from(piece)) ?? [whole]
    return { status: wanted.status ?? 201, headers: wanted.headers ?? {}, pieces, isStreamed: texts !== undefined }
  }
}

async function* inPieces(pieces: Buffer[]): AsyncGenerator<Buffer> {
  for (const piece of pieces) {
    yield piece
    await sleep(20)
  }
}

type Start = (options: IdempotencyOptions) => Promise<Seen>

async function listen(server: HttpServer): Promise<string> {
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve))
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`
}

function seenBy(service: Service, url: string, drain: () => Promise<void>, stop: () => Promise<void>): Seen {
  return Object.assign(service, { url, drain, stop })
}

function startExpress(version: typeof express): Start {
  return async (options) => {
    const service = new Service()
    const app = version()
    const middleware = forExpress(options)
    app.use("/api", middleware, version.json({ limit: "10mb" }), version.text())
    app.all("/api/orders", (request, response, next) => {
      const { "hapax-attempt": attempt, "hapax-fence": fence } = request.headers
      service.answer((request.body ?? {}) as Wanted, attempt, fence).then(async (planned) => {
        response.status(planned.status).set(planned.headers)
        if (!planned.isStreamed) return void response.send(planned.pieces[0])
        for await (const piece of inPieces(planned.pieces)) response.write(piece)
        response.end()
      }).catch(next)
    })
    app.use(((_error, _request, response, _next) => void response.status(500).send("failed")) as express.ErrorRequestHandler)
    const server = createServer(app)
    const url = `${await listen(server)}/api/orders`
    return seenBy(service, url, () => middleware.drain(), async () => void (server.closeAllConnections(), server.close()))
  }
}

function startFastify(version: typeof fastify4): Start {
  return async (options) => {
    const service = new Service()
    const app = version({ bodyLimit: 10 * 1024 * 1024, keepAliveTimeout: 200 })
    app.register(forFastify, options)
    app.register(async (scope) => {
      scope.all("/api/orders", async (request, reply) => {
        const { "hapax-attempt": attempt, "hapax-fence": fence } = request.headers
        const planned = await service.answer((request.body ?? {}) as Wanted, attempt, fence)
        reply.code(planned.status).headers(planned.headers)
        return reply.send(planned.isStreamed ? Readable.from(inPieces(planned.pieces)) : planned.pieces[0])
      })
    })
    const address = await app.listen({ port: 0, host: "127.0.0.1" })
    return seenBy(service, `${address}/api/orders`, async () => void (await app.close()), async () => {
      app.server.closeAllConnections()
      await app.close()
    })
  }
}

const startHono: Start = async (options) => {
  const service = new Service()
  const app = new Hono()
  const middleware = forHono(options)
  app.use("/api/*", middleware)
  app.all("/api/orders", async (context) => {
    const text = await context.req.text()
    const [attempt, fence] = [context.req.header("hapax-attempt"), context.req.header("hapax-fence")]
    const planned = await service.answer((text.startsWith("{") ? JSON.parse(text) : {}) as Wanted, attempt, fence)
    const headers = new Headers()
    for (const [name, values] of Object.entries(planned.headers)) [values].flat().forEach((value) => headers.append(name, value))
    const stream = () => Readable.toWeb(Readable.from(inPieces(planned.pieces))) as unknown as ReadableStream
    const hasBody = planned.status !== 204
    return new Response(!hasBody ? null : planned.isStreamed ? stream() : (planned.pieces[0] as unknown as BodyInit), { status: planned.status, headers })
  })
  app.onError((_, context) => context.text("failed", 500))
  const server = serve({ fetch: app.fetch, port: 0, hostname: "127.0.0.1" }) as HttpServer
  if (!server.listening) await new Promise((resolve) => server.on("listening", resolve))
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/api/orders`
  return seenBy(service, url, () => middleware.drain(), async () => void (server.closeAllConnections(), server.close()))
}

/** Every framework that runs on this version of Node. */
export async function frameworks(): Promise<[name: string, start: Start][]> {
  const found: [string, Start][] = [
    ["express 5", startExpress(express)],
    ["express 4", startExpress(express4 as unknown as typeof express)],
    ["fastify 4", startFastify(fastify4)],
    ["hono", startHono],
  ]
  if (Number(process.versions.node.split(".")[0]) >= 20) {
    const { default: fastify5 } = await import("fastify5")
    found.push(["fastify 5", startFastify(fastify5 as unknown as typeof fastify4)])
  }
  return found
}
