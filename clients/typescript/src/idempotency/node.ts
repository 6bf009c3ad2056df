/** The requests and responses of Node's `http`, for Express and Fastify. */
import { Buffer } from "node:buffer"
import type { IncomingMessage, OutgoingHttpHeaders, ServerResponse } from "node:http"
import { startTimer } from "../runtime.js"
import type { FirstRun, HandlerResponse } from "./gate.js"
import { RefusedRequest } from "./problem.js"
import type { OutgoingResponse } from "./problem.js"
import type { RequestHead } from "./request.js"

/** The head of a request; `target` is its path and query as the client sent them. */
export function headOf(request: IncomingMessage, target: string): RequestHead {
  const mark = target.indexOf("?")
  const raw = request.rawHeaders
  return {
    method: (request.method ?? "").toUpperCase(),
    path: mark < 0 ? target : target.slice(0, mark),
    query: mark < 0 ? "" : target.slice(mark + 1),
    values: (name) => raw.flatMap((item, at) => (at % 2 === 0 && item.toLowerCase() === name ? [raw[at + 1] ?? ""] : [])),
  }
}

/** Strips `Hapax-*` headers of the client, and tells the handler of its attempt. */
export function tellAttempt(request: IncomingMessage, run: FirstRun | undefined): void {
  delete request.headers["hapax-attempt"]
  delete request.headers["hapax-fence"]
  if (run === undefined) return
  request.headers["hapax-attempt"] = String(run.attempt)
  request.headers["hapax-fence"] = String(run.fence)
}

export function tooLarge(maxBytes: number): RefusedRequest {
  return new RefusedRequest("payload-too-large", `a request with a key may have at most ${maxBytes} bytes; nothing was run`)
}

/** Reads the whole body and puts it back, so that the body parsers behind find it. */
export function peekBody(request: IncomingMessage, maxBytes: number, timeoutMs: number): Promise<Buffer> {
  if (Number(request.headers["content-length"] ?? 0) > maxBytes) return Promise.reject(tooLarge(maxBytes))
  return new Promise((resolve, reject) => {
    const chunks: Buffer[] = []
    let size = 0
    const finish = (settle: () => void) => {
      stopTimer()
      request.off("readable", read).off("close", cut).off("error", cut)
      settle()
    }
    const cut = () =>
      finish(() => reject(new RefusedRequest("invalid-request", "the request broke off before its end; nothing was run", { retryable: true })))
    const late = () =>
      finish(() => reject(new RefusedRequest("request-timeout", `the body did not arrive within ${timeoutMs} ms; nothing was run`)))
    const read = () => {
      // Exactly what is there: a read beyond it would end the stream, and nothing could be put back.
      while (request.readableLength > 0) {
        const chunk = request.read(request.readableLength) as Buffer
        size += chunk.length
        if (size > maxBytes) return finish(() => reject(tooLarge(maxBytes)))
        chunks.push(chunk)
      }
      if (!request.complete) return
      finish(() => {
        const body = Buffer.concat(chunks)
        if (body.length > 0) request.unshift(body)
        resolve(body)
      })
    }
    const stopTimer = startTimer(late, timeoutMs)
    request.on("readable", read).on("close", cut).on("error", cut)
    read()
  })
}

/** Sends a complete response. Headers that the service has set before stay, unless the response has them too. */
export function send(response: ServerResponse, outgoing: OutgoingResponse): void {
  response.statusCode = outgoing.status
  const names = new Set(outgoing.headers.map(([name]) => name))
  for (const name of names) {
    const values = outgoing.headers.filter(([other]) => other === name).map(([, value]) => value)
    response.setHeader(name, values.length === 1 ? (values[0] ?? "") : values)
  }
  const hasBody = outgoing.status !== 204 && outgoing.status !== 304
  if (hasBody) response.setHeader("content-length", outgoing.body.length)
  response.end(Buffer.from(outgoing.body))
}

/**
 * Ends the run with what the handler sends. The end of the response goes out after the store has it: a client that received the
 * complete answer can rely on getting it again.
 */
export function captureResponse(response: ServerResponse, run: FirstRun, maxBytes: number): void {
  const { write, end, writeHead, flushHeaders } = response
  const chunks: Buffer[] = []
  /** Bytes of a response whose length the client knows, and which would be complete with them. */
  const held: Buffer[] = []
  let [size, isEnded, isStreaming] = [0, false, false]
  let isStored = true
  let store: string | undefined

  const restore = () => Object.assign(response, { write, end, writeHead, flushHeaders })
  const keep = (chunk: Buffer) => {
    size += chunk.length
    isStored &&= size <= maxBytes
    if (isStored) chunks.push(chunk)
    else chunks.length = 0
  }
  /** Takes `Idempotency-Store` away before the head goes out. */
  const readHead = () => {
    store ??= response.getHeader("idempotency-store")?.toString()
    response.removeHeader("idempotency-store")
    // An event stream may never end, so no copy of it is collected.
    if (/^text\/event-stream/i.test(String(response.getHeader("content-type") ?? ""))) isStored = false
  }
  const startStreaming = () => {
    if (isStreaming) return
    isStreaming = true
    readHead()
    // Node writes the head by this method with the first bytes of the body.
    Object.assign(response, { writeHead, flushHeaders })
  }

  response.writeHead = ((status: number, reason?: unknown, headers?: unknown) => {
    response.statusCode = status
    if (typeof reason === "string") response.statusMessage = reason
    setHeaders(response, (typeof reason === "string" ? headers : (reason ?? headers)) as OutgoingHttpHeaders | string[] | undefined)
    return response
  }) as typeof writeHead
  response.flushHeaders = () => {
    startStreaming()
    response.flushHeaders()
  }
  response.write = ((chunk: string | Uint8Array, encoding?: unknown, callback?: unknown) => {
    if (isEnded) return false
    const bytes = bytesOf(chunk, encoding)
    keep(bytes)
    const length = Number(response.getHeader("content-length") ?? Infinity)
    const done = (typeof encoding === "function" ? encoding : callback) as ((error?: Error | null) => void) | undefined
    if (size >= length) {
      held.push(bytes)
      done?.()
      return true
    }
    startStreaming()
    return write.call(response, bytes, "utf8", done)
  }) as typeof write
  response.end = ((chunk?: unknown, encoding?: unknown, callback?: unknown) => {
    if (isEnded) return response
    isEnded = true
    const done = [chunk, encoding, callback].find((argument) => typeof argument === "function") as (() => void) | undefined
    const last = typeof chunk === "string" || chunk instanceof Uint8Array ? bytesOf(chunk, encoding) : Buffer.alloc(0)
    keep(last)
    if (!isStreaming) readHead()
    const head: HandlerResponse = { status: response.statusCode, headers: headersOf(response), body: isStored ? Buffer.concat(chunks) : undefined }
    if (store !== undefined) head.headers.push(["idempotency-store", store])
    const sent = { status: response.statusCode, headers: response.headersSent ? undefined : response.getHeaders() }
    void run.finish(head).catch(() => undefined).then((instead) => {
      restore()
      if (isStreaming) {
        // A part that was sent cannot be taken back: cut it, so that the client does not take it for the answer.
        if (instead !== undefined) return void response.destroy()
        for (const bytes of held) write.call(response, bytes, "utf8")
        return void end.call(response, last, "utf8", done)
      }
      // Code behind the end may have changed the head.
      response.getHeaderNames().forEach((name) => response.removeHeader(name))
      if (instead === undefined) {
        response.statusCode = sent.status
        setHeaders(response, sent.headers as OutgoingHttpHeaders)
        return void end.call(response, Buffer.concat([...held, last]), "utf8", done)
      }
      return send(response, instead)
    }).catch(() => response.destroy())
    return response
  }) as typeof end
}

function bytesOf(chunk: string | Uint8Array, encoding: unknown): Buffer {
  if (typeof chunk === "string") return Buffer.from(chunk, (typeof encoding === "string" ? encoding : "utf8") as BufferEncoding)
  // Copied, because the handler may use its buffer again.
  return Buffer.from(chunk)
}

function headersOf(response: ServerResponse): [string, string][] {
  return Object.entries(response.getHeaders()).flatMap(([name, values]) =>
    [values].flat().flatMap((value): [string, string][] => (value === undefined ? [] : [[name.toLowerCase(), String(value)]])),
  )
}

/** Sets headers as `writeHead` takes them: an object, or a list of names and values. */
function setHeaders(response: ServerResponse, headers: OutgoingHttpHeaders | string[] | undefined): void {
  if (Array.isArray(headers)) {
    const flat = headers.flat()
    const merged = new Map<string, string[]>()
    for (let at = 0; at + 1 < flat.length; at += 2) {
      const name = String(flat[at]).toLowerCase()
      merged.set(name, [...(merged.get(name) ?? []), String(flat[at + 1])])
    }
    merged.forEach((values, name) => response.setHeader(name, values.length === 1 ? (values[0] ?? "") : values))
    return
  }
  for (const [name, value] of Object.entries(headers ?? {})) {
    if (value !== undefined) response.setHeader(name, value)
  }
}
