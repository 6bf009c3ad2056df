/** `Idempotency-Key` for Hono, on any runtime. */
import { IdempotencyGate } from "./idempotency/gate.js"
import type { FirstRun, IdempotencyOptions } from "./idempotency/gate.js"
import { RefusedRequest } from "./idempotency/problem.js"
import type { OutgoingResponse } from "./idempotency/problem.js"
import type { RequestHead } from "./idempotency/request.js"
import { pause } from "./runtime.js"

export type { IdempotencyEvent, IdempotencyOptions } from "./idempotency/gate.js"
export type { CallerScope, RequestHead } from "./idempotency/request.js"
export type { Verdict } from "./idempotency/response.js"

interface Context {
  req: { raw: Request }
  res: Response
}

/** A middleware. `drain` refuses new keyed requests and waits for the running ones. */
export interface IdempotencyMiddleware {
  (context: Context, next: () => Promise<void>): Promise<Response | void>
  drain: (timeoutMs?: number) => Promise<void>
}

/** Runs a request with an `Idempotency-Key` once; every other request with that key gets the same answer. */
export function idempotency(options: IdempotencyOptions): IdempotencyMiddleware {
  const gate = new IdempotencyGate(options)
  const middleware = async (context: Context, next: () => Promise<void>): Promise<Response | void> => {
    const { raw } = context.req
    let run: FirstRun | undefined
    try {
      const head = headOf(raw)
      const key = await gate.readKey(head)
      if (key === undefined) {
        if (raw.headers.has("hapax-attempt") || raw.headers.has("hapax-fence")) context.req.raw = withAttempt(raw, raw.body, undefined)
        return await next()
      }
      const body = await readBody(raw, gate.maxBodyBytes, gate.bodyTimeoutMs)
      const admission = await gate.admit(head, key, body)
      if (admission.answer !== undefined) return responseOf(admission.answer)
      run = admission.run
      context.req.raw = withAttempt(raw, body, run)
    } catch (error) {
      if (!(error instanceof RefusedRequest)) throw error
      gate.record("refused", raw.method)
      return responseOf(error.response)
    }
    try {
      await next()
    } catch (error) {
      // Hono turns errors of handlers into responses; one that comes through leaves the outcome open.
      await run?.abandon()
      throw error
    }
    if (run === undefined) {
      context.res.headers.set("hapax-unprotected", "store-unavailable")
      return
    }
    const answered = await capture(context.res, run, gate.maxBodyBytes)
    // Hono merges headers of an earlier response into a new one, unless it is removed first.
    ;(context as { res: Response | undefined }).res = undefined
    context.res = answered
  }
  return Object.assign(middleware, { drain: (timeoutMs?: number) => gate.drain(timeoutMs) })
}

function headOf(request: Request): RequestHead {
  // As the client sent it: a parsed URL would be normalised.
  const [target = "/"] = /(?<=^[a-z]+:\/\/[^/?#]*)[/?][^#]*/i.exec(request.url) ?? []
  const mark = target.indexOf("?")
  return {
    method: request.method.toUpperCase(),
    path: mark < 0 ? target : target.slice(0, mark) || "/",
    query: mark < 0 ? "" : target.slice(mark + 1),
    // Repeated headers come as one text with ", " between, which no key may contain.
    values: (name) => [request.headers.get(name)].flatMap((value) => (value === null ? [] : [value])),
  }
}

/** The request with what is told to the handler; `Hapax-*` headers of the client are removed. */
function withAttempt(request: Request, body: Uint8Array | ReadableStream<Uint8Array> | null, run: FirstRun | undefined): Request {
  const headers = new Headers(request.headers)
  headers.delete("hapax-attempt")
  headers.delete("hapax-fence")
  if (run !== undefined) {
    headers.set("hapax-attempt", String(run.attempt))
    headers.set("hapax-fence", String(run.fence))
  }
  const init = { method: request.method, headers, signal: request.signal, duplex: "half" }
  const hasBody = body !== null && (!(body instanceof Uint8Array) || body.length > 0)
  return new Request(request.url, (hasBody ? { ...init, body } : init) as RequestInit)
}

async function readBody(request: Request, maxBytes: number, timeoutMs: number): Promise<Uint8Array> {
  const tooLarge = new RefusedRequest("payload-too-large", `a request with a key may have at most ${maxBytes} bytes; nothing was run`)
  if (Number(request.headers.get("content-length") ?? 0) > maxBytes) throw tooLarge
  if (request.body === null) return new Uint8Array()
  const reader = (request.body as ReadableStream<Uint8Array>).getReader()
  const chunks: Uint8Array[] = []
  const stop = new AbortController()
  const late = pause(timeoutMs, stop.signal).then(() => {
    throw new RefusedRequest("request-timeout", `the body did not arrive within ${timeoutMs} ms; nothing was run`)
  })
  late.catch(() => {})
  try {
    for (let size = 0; ; ) {
      const { done, value } = await Promise.race([reader.read(), late])
      if (done || value === undefined) return concat(chunks)
      size += value.length
      if (size > maxBytes) throw tooLarge
      chunks.push(value)
    }
  } catch (error) {
    reader.cancel().catch(() => {})
    if (error instanceof RefusedRequest) throw error
    throw new RefusedRequest("invalid-request", "the request broke off before its end; nothing was run", { retryable: true })
  } finally {
    stop.abort()
  }
}

/**
 * Ends the run with the handler's response, whose end goes out after the store has it. A response that is ready at once is stored
 * first; one that comes in pieces is passed on while a copy is collected.
 */
async function capture(response: Response, run: FirstRun, maxBytes: number): Promise<Response> {
  const store = response.headers.get("idempotency-store")
  const head = new Headers(response.headers)
  head.delete("idempotency-store")
  const headers = [...head].map(([name, value]): [string, string] => [name.toLowerCase(), value])
  if (store !== null) headers.push(["idempotency-store", store])
  const { status, statusText } = response
  const init = { status, statusText, headers: head }
  const finish = (body: Uint8Array | undefined) => run.finish({ status, headers, body })
  const source = response.body as ReadableStream<Uint8Array> | null
  if (source === null) {
    const instead = await finish(new Uint8Array())
    return instead === undefined ? new Response(null, init) : responseOf(instead)
  }
  // An event stream may never end, so no copy of it is collected.
  let isStored = !/^text\/event-stream/i.test(head.get("content-type") ?? "")
  const reader = source.getReader()
  const chunks: Uint8Array[] = []
  let size = 0
  const keep = (chunk: Uint8Array) => {
    size += chunk.length
    isStored &&= size <= maxBytes
    if (isStored) chunks.push(chunk)
  }
  let pending = reader.read()
  const ready: Uint8Array[] = []
  try {
    while (isStored) {
      const read = await Promise.race([pending, pause(5).then(() => undefined)])
      if (read === undefined) break
      if (read.done) {
        const instead = await finish(concat(chunks))
        return instead === undefined ? new Response(concat(chunks) as BodyInit, init) : responseOf(instead)
      }
      ready.push(read.value)
      keep(read.value)
      pending = reader.read()
    }
  } catch {
    await run.abandon()
    const detail = "the service's response ended early; it may or may not have acted, and a retry does not run it again"
    return responseOf(new RefusedRequest("outcome-unknown", detail).response)
  }
  // With a known length the client would have everything with the last bytes: hold them back.
  const hasLength = head.has("content-length")
  let held: Uint8Array | undefined
  const stream = new ReadableStream<Uint8Array>({
    async pull(controller) {
      const first = ready.shift()
      if (first !== undefined) return pass(controller, first)
      try {
        const read = await pending
        if (!read.done) {
          pending = reader.read()
          pending.catch(() => {})
          keep(read.value)
          return pass(controller, read.value)
        }
      } catch (error) {
        await run.abandon()
        return controller.error(error)
      }
      const instead = await finish(isStored ? concat(chunks) : undefined)
      if (instead !== undefined) return controller.error(new Error("another attempt had taken over"))
      if (held !== undefined) controller.enqueue(held)
      controller.close()
    },
    async cancel() {
      // The client has left: the rest is read to its end, because only that says that the handler has finished.
      try {
        for (let read = await pending; !read.done; read = await reader.read()) keep(read.value)
        await finish(isStored ? concat(chunks) : undefined)
      } catch {
        await run.abandon()
      }
    },
  })
  function pass(controller: ReadableStreamDefaultController<Uint8Array>, chunk: Uint8Array): void {
    if (!hasLength) return controller.enqueue(chunk)
    const earlier = held
    held = chunk
    if (earlier !== undefined) controller.enqueue(earlier)
    // A pull that enqueues nothing is not repeated by itself.
    else controller.enqueue(new Uint8Array())
  }
  return new Response(stream, init)
}

function responseOf(outgoing: OutgoingResponse): Response {
  const headers = new Headers()
  for (const [name, value] of outgoing.headers) headers.append(name, value)
  const hasBody = outgoing.status !== 204 && outgoing.status !== 304
  return new Response(hasBody ? (outgoing.body as BodyInit) : null, { status: outgoing.status, headers })
}

function concat(chunks: readonly Uint8Array[]): Uint8Array {
  const bytes = new Uint8Array(chunks.reduce((sum, chunk) => sum + chunk.length, 0))
  let at = 0
  for (const chunk of chunks) {
    bytes.set(chunk, at)
    at += chunk.length
  }
  return bytes
}
