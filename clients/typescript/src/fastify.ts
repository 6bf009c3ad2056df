/** `Idempotency-Key` for Fastify 4 and 5. */
import { Buffer } from "node:buffer"
import type { IncomingMessage, ServerResponse } from "node:http"
import { Readable } from "node:stream"
import { IdempotencyGate } from "./idempotency/gate.js"
import type { IdempotencyOptions } from "./idempotency/gate.js"
import { captureResponse, headOf, send, tellAttempt, tooLarge } from "./idempotency/node.js"
import { RefusedRequest } from "./idempotency/problem.js"
import { pause } from "./runtime.js"

export type { IdempotencyEvent, IdempotencyOptions } from "./idempotency/gate.js"
export type { CallerScope, RequestHead } from "./idempotency/request.js"
export type { Verdict } from "./idempotency/response.js"

interface Request {
  raw: IncomingMessage
}

interface Reply {
  raw: ServerResponse
  hijack: () => unknown
  getHeaders: () => Record<string, unknown>
  header: (name: string, value: string) => unknown
}

type PreParsing = (request: Request, reply: Reply, payload: AsyncIterable<Uint8Array | string>) => Promise<unknown>

interface Fastify {
  addHook: (name: "preParsing" | "onClose", hook: never) => unknown
}

/**
 * Runs a request with an `Idempotency-Key` once; every other request with that key gets the same answer. `app.register(idempotency, {
 * client })` covers every route that is registered after it; closing the app waits for running requests to be stored.
 */
export function idempotency(app: Fastify, options: IdempotencyOptions, done: (error?: Error) => void): void {
  const gate = new IdempotencyGate(options)
  const answer = (reply: Reply, outgoing: Parameters<typeof send>[1]) => {
    // Headers of other plugins, such as CORS, are the reply's and not yet the raw response's.
    for (const [name, value] of Object.entries(reply.getHeaders())) {
      if (value !== undefined) reply.raw.setHeader(name, value as string)
    }
    reply.hijack()
    send(reply.raw, outgoing)
  }
  const preParsing: PreParsing = async (request, reply, payload) => {
    const { raw } = request
    tellAttempt(raw, undefined)
    try {
      const head = headOf(raw, raw.url ?? "/")
      const key = await gate.readKey(head)
      if (key === undefined) return payload
      const body = await readAll(payload, gate.maxBodyBytes, gate.bodyTimeoutMs)
      const admission = await gate.admit(head, key, body)
      if (admission.answer !== undefined) return answer(reply, admission.answer)
      if (admission.run === undefined) {
        reply.header("hapax-unprotected", "store-unavailable")
      } else {
        tellAttempt(raw, admission.run)
        captureResponse(reply.raw, admission.run, gate.maxBodyBytes)
      }
      return Object.assign(Readable.from(body.length > 0 ? [body] : [], { objectMode: false }), { receivedEncodedLength: body.length })
    } catch (error) {
      if (!(error instanceof RefusedRequest)) throw error
      gate.record("refused", raw.method ?? "")
      if (!raw.complete) reply.raw.setHeader("connection", "close")
      return answer(reply, error.response)
    }
  }
  app.addHook("preParsing", preParsing as never)
  app.addHook("onClose", (() => gate.drain()) as never)
  done()
}

// The plugin belongs to the app that registers it, and not to a scope of its own.
Object.assign(idempotency, { [Symbol.for("skip-override")]: true, [Symbol.for("fastify.display-name")]: "hapax-idempotency" })

async function readAll(payload: AsyncIterable<Uint8Array | string>, maxBytes: number, timeoutMs: number): Promise<Buffer> {
  const chunks: Buffer[] = []
  let size = 0
  const read = async () => {
    try {
      for await (const chunk of payload) {
        const bytes = Buffer.from(chunk as Uint8Array)
        size += bytes.length
        if (size > maxBytes) throw tooLarge(maxBytes)
        chunks.push(bytes)
      }
    } catch (error) {
      if (error instanceof RefusedRequest) throw error
      throw new RefusedRequest("invalid-request", "the request broke off before its end; nothing was run", { retryable: true })
    }
    return Buffer.concat(chunks)
  }
  const stop = new AbortController()
  const late = pause(timeoutMs, stop.signal).then(() => {
    throw new RefusedRequest("request-timeout", `the body did not arrive within ${timeoutMs} ms; nothing was run`)
  })
  try {
    late.catch(() => {})
    return await Promise.race([read(), late])
  } finally {
    stop.abort()
  }
}
