import { HapaxError, IncompatibleServer, InvalidRequest, Lost, OutcomeUnknown, StoreUnavailable, errorOfAnswer } from "./errors.js"
import type { ProblemFields } from "./errors.js"
import { environment, pause } from "./runtime.js"

export interface ConnectOptions {
  /** The server's address; by default the variable `HAPAX_SERVER`, or `http://127.0.0.1:8787`. */
  url?: string | undefined
  /** The access token; by default the variable `HAPAX_TOKEN`, or none. */
  token?: string | undefined
  /** The longest that one request may take, not counting the time that it asks the server to wait. */
  timeoutMs?: number | undefined
  /** For how long a call is tried again while the server or its store is away. */
  retryForMs?: number | undefined
  /** The function that makes requests; by default the global `fetch`. */
  fetch?: typeof fetch | undefined
}

/** The choice of a call whose answer is lost: make it again, or report that the outcome is unknown. */
export type AfterLostAnswer = "repeat" | "unknown"

export interface ApiCall {
  method: string
  /** Names of the path, which are percent-encoded here. */
  path: readonly string[]
  query?: Record<string, string | number | undefined>
  headers?: Record<string, string>
  /** Sent as JSON. */
  body?: unknown
  /** How long the server may wait before it answers. */
  waitMs?: number | undefined
  /** Another `retryForMs` than that of `connect`. */
  retryForMs?: number | undefined
  signal?: AbortSignal | undefined
  afterLostAnswer: AfterLostAnswer
  /** No retry at all: the caller has its own. */
  once?: boolean
  /** Told before the call is made again. */
  onRepeat?: () => void
}

export interface ApiAnswer {
  status: number
  headers: Headers
  text: string
}

/** Answers that say that the call was not executed, so that every call may be made again. */
const NOT_EXECUTED = new Set(["overloaded", "shutting-down", "too-many-requests", "too-many-streams"])
/** Errors of Node, Deno and Bun that mean that no connection was made. */
const NOT_CONNECTED = /ECONNREFUSED|ENOTFOUND|EAI_AGAIN|EHOSTUNREACH|ENETUNREACH|UND_ERR_CONNECT_TIMEOUT|ConnectionRefused/
/** The largest answer that is read: a stored response of 1 MiB in base64, with room for its headers. */
const MAX_ANSWER = 16 * 1024 * 1024

export class Transport {
  readonly url: string
  readonly timeoutMs: number
  readonly retryForMs: number
  readonly #token: string | undefined
  readonly #fetch: typeof fetch

  constructor(options: ConnectOptions) {
    this.url = checkedUrl(options.url ?? environment("HAPAX_SERVER") ?? "http://127.0.0.1:8787")
    this.#token = checkedToken(options.token ?? environment("HAPAX_TOKEN"))
    this.timeoutMs = checkedDuration("timeoutMs", options.timeoutMs ?? 10_000, 1, 3_600_000)
    this.retryForMs = checkedDuration("retryForMs", options.retryForMs ?? 15_000, 0, 3_600_000)
    const chosen = options.fetch ?? globalThis.fetch
    if (typeof chosen !== "function") {
      throw new InvalidRequest("this runtime has no `fetch`; use Node 18 or later, or pass `fetch` to connect")
    }
    this.#fetch = chosen
  }

  /** Makes a call, again with growing pauses while that is safe. Throws the error of an answer that is no success. */
  async call(call: ApiCall): Promise<ApiAnswer> {
    const until = performance.now() + (call.retryForMs ?? this.retryForMs)
    for (let attempt = 0; ; attempt++) {
      try {
        return await this.#callOnce(call)
      } catch (error) {
        if (!(error instanceof HapaxError) || call.once || !isRepeatable(error)) throw error
        const delay = retryDelay(attempt, error.retryAfterMs)
        if (performance.now() + delay > until) throw error
        await pause(delay, call.signal)
        call.onRepeat?.()
      }
    }
  }

  /** Opens a stream of events. The caller reads it and decides about retries. */
  async open(path: readonly string[], query: ApiCall["query"], headers: Record<string, string>, signal: AbortSignal): Promise<Response> {
    const response = await this.#fetch(this.#address(path, query), {
      headers: { ...this.#headers(), accept: "text/event-stream", ...headers },
      redirect: "error",
      signal,
    })
    if (response.status === 200 || response.status === 204) return response
    throw await errorOf(response)
  }

  /**
   * Gives a lock or claim back with its token. A repeated call may find that the first one, whose
   * answer was lost, has done so.
   */
  async giveBack(path: readonly string[], token: string): Promise<void> {
    let repeated = false
    const call = { method: "DELETE", path, headers: { "hapax-token": token }, onRepeat: () => (repeated = true) }
    try {
      await this.call({ ...call, afterLostAnswer: "repeat" })
    } catch (error) {
      if (!(error instanceof Lost && repeated)) throw error
    }
  }

  async #callOnce(call: ApiCall): Promise<ApiAnswer> {
    const timeoutMs = this.timeoutMs + (call.waitMs ?? 0)
    const controller = new AbortController()
    const abort = () => controller.abort(call.signal?.reason)
    if (call.signal?.aborted) throw call.signal.reason
    call.signal?.addEventListener("abort", abort, { once: true })
    const timer = setTimeout(() => controller.abort(), timeoutMs)
    try {
      const init: RequestInit = {
        method: call.method,
        headers: { ...this.#headers(), ...call.headers },
        redirect: "error",
        signal: controller.signal,
      }
      if (call.body !== undefined) {
        init.body = jsonOf(call.body)
        init.headers = { ...init.headers, "content-type": "application/json" }
      }
      const response = await this.#fetch(this.#address(call.path, call.query), init)
      if (!response.ok) throw await errorOf(response)
      return { status: response.status, headers: response.headers, text: await boundedText(response) }
    } catch (error) {
      if (call.signal?.aborted) throw call.signal.reason
      if (error instanceof HapaxError) throw refined(error, call)
      throw lostAnswer(error, call, this.url, controller.signal.aborted ? timeoutMs : undefined)
    } finally {
      clearTimeout(timer)
      call.signal?.removeEventListener("abort", abort)
    }
  }

  #headers(): Record<string, string> {
    return this.#token === undefined ? {} : { authorization: `Bearer ${this.#token}` }
  }

  #address(path: readonly string[], query: ApiCall["query"]): string {
    const encoded = path.map(encodeURIComponent)
    const pairs = Object.entries(query ?? {}).filter(([, value]) => value !== undefined)
    const search = new URLSearchParams(pairs.map(([name, value]) => [name, String(value)])).toString()
    return `${this.url}/v1/${encoded.join("/")}${search === "" ? "" : `?${search}`}`
  }
}

/** A pause that doubles from 100 ms to 5 s, with jitter; at least what the server asked for. */
export function retryDelay(attempt: number, retryAfterMs = 0): number {
  const backoff = Math.min(100 * 2 ** attempt, 5_000)
  return Math.max(backoff * (0.5 + Math.random() / 2), retryAfterMs)
}

function isRepeatable(error: HapaxError): boolean {
  return error instanceof StoreUnavailable && error.retryable
}

/** A store that failed in the middle of a write that must not be repeated leaves its outcome open. */
function refined(error: HapaxError, call: ApiCall): HapaxError {
  const isOpen = error instanceof StoreUnavailable && !NOT_EXECUTED.has(error.code)
  return isOpen && call.afterLostAnswer === "unknown" ? unknownWrite(error) : error
}

function lostAnswer(cause: unknown, call: ApiCall, url: string, timedOutAfterMs: number | undefined): HapaxError {
  const where = new URL(url).host
  if (timedOutAfterMs === undefined && NOT_CONNECTED.test(codesOf(cause))) {
    const message = `no hapax server answers at ${where}; start one (\`hapax serve\`) or correct \`url\``
    return new StoreUnavailable(message, { code: "unreachable", cause })
  }
  const reason = timedOutAfterMs === undefined ? "the connection was lost" : `no answer within ${timedOutAfterMs} ms`
  const error = new StoreUnavailable(`${reason} (server ${where})`, { code: "no-answer", cause })
  return call.afterLostAnswer === "unknown" ? unknownWrite(error) : error
}

function unknownWrite(cause: HapaxError): OutcomeUnknown {
  const message = `${cause.message}; the write may or may not have happened: read before you write again`
  return new OutcomeUnknown(message, { status: cause.status, cause })
}

function codesOf(error: unknown): string {
  const codes: string[] = []
  const visit = (item: unknown, depth: number): void => {
    if (typeof item !== "object" || item === null || depth > 4) return
    const { code, name, cause, errors } = item as { code?: unknown; name?: unknown; cause?: unknown; errors?: unknown }
    codes.push(String(code ?? ""), String(name ?? ""))
    visit(cause, depth + 1)
    if (Array.isArray(errors)) errors.slice(0, 8).forEach((one) => visit(one, depth + 1))
  }
  visit(error, 0)
  return codes.join(" ")
}

async function errorOf(response: Response): Promise<HapaxError> {
  const seconds = Number(response.headers.get("retry-after"))
  const retryAfterMs = seconds > 0 ? Math.min(seconds, 3600) * 1000 : undefined
  let problem: ProblemFields = {}
  try {
    const parsed: unknown = JSON.parse(await boundedText(response))
    if (typeof parsed === "object" && parsed !== null) problem = parsed
  } catch {
    // The status alone decides: another server, or a proxy before it, may have answered.
  }
  return errorOfAnswer(response.status, problem, retryAfterMs)
}

async function boundedText(response: Response): Promise<string> {
  if (Number(response.headers.get("content-length") ?? 0) > MAX_ANSWER) {
    await response.body?.cancel()
    throw new IncompatibleServer(`the answer is larger than ${MAX_ANSWER} bytes, which no hapax server sends`)
  }
  return response.text()
}

export function jsonOf(value: unknown): string {
  let text: string | undefined
  try {
    text = JSON.stringify(value)
  } catch (cause) {
    throw new InvalidRequest("the value cannot be written as JSON; pass plain objects, arrays, texts and numbers", { cause })
  }
  if (text === undefined) throw new InvalidRequest("the value cannot be written as JSON: it is undefined or a function")
  return text
}

export function parseAnswer<T>(answer: ApiAnswer): T {
  try {
    return JSON.parse(answer.text) as T
  } catch (cause) {
    const message = "the answer is not JSON; the address is not a hapax server's, or a proxy changed the answer"
    throw new IncompatibleServer(message, { status: answer.status, cause })
  }
}

/** A name for a path: 1 to 255 bytes of printable ASCII. The message never contains the name. */
export function checkedName(field: string, name: unknown, spaceIsAllowed = false): string {
  if (typeof name !== "string") throw new InvalidRequest(`\`${field}\` must be a text`)
  const allowed = spaceIsAllowed ? /^[\x20-\x7e]{1,255}$/ : /^[\x21-\x7e]{1,255}$/
  if (!allowed.test(name)) {
    throw new InvalidRequest(`\`${field}\` must have 1 to 255 characters of printable ASCII${spaceIsAllowed ? "" : " without spaces"}`)
  }
  // `fetch` takes these for steps in the path, even percent-encoded.
  if (name === "." || name === "..") throw new InvalidRequest(`\`${field}\` must not be "." or "..", which no address can hold`)
  return name
}

/** A whole number of milliseconds. */
export function checkedDuration(field: string, value: unknown, least: number, most: number): number {
  if (typeof value !== "number" || !Number.isInteger(value) || value < least || value > most) {
    throw new InvalidRequest(`\`${field}\` must be a whole number of milliseconds from ${least} to ${most}`)
  }
  return value
}

function checkedUrl(url: unknown): string {
  let parsed: URL
  try {
    parsed = new URL(String(url))
  } catch {
    throw new InvalidRequest("`url` must be an address such as http://127.0.0.1:8787")
  }
  if (parsed.protocol !== "http:" && parsed.protocol !== "https:") {
    throw new InvalidRequest("`url` must begin with http:// or https://")
  }
  if (parsed.username !== "" || parsed.password !== "" || parsed.search !== "" || parsed.hash !== "") {
    throw new InvalidRequest("`url` must have no user, password, query or fragment; pass the token as `token`")
  }
  return `${parsed.origin}${parsed.pathname.replace(/\/+$/, "")}`
}

function checkedToken(token: unknown): string | undefined {
  if (token === undefined) return undefined
  if (typeof token !== "string" || !/^[\x21-\x7e]+$/.test(token)) {
    throw new InvalidRequest("`token` must be a text of printable ASCII without spaces")
  }
  return token
}
