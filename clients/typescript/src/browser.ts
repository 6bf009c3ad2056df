/**
 * For pages: one `Idempotency-Key` for each intent of a person, kept over retries and reloads, and a job that is followed.
 *
 * An intent is what the person wants once: to send this form, to press this button. Its key stays until the service has answered.
 */
import { readFrames } from "./sse.js"

export interface IntentOptions {
  /** Where keys are kept; by default `sessionStorage`: one tab, over reloads. */
  storage?: Storage | undefined
  /** How often a request is sent before its error reaches you; 6 by default. */
  attempts?: number | undefined
  /** The longest that one attempt may take; 30 s by default. */
  timeoutMs?: number | undefined
}

/** Answers after which the same request may be sent again by itself. */
const TRY_AGAIN = [408, 425, 429, 503]
/** Answers that leave the intent open: log in, or wait for what an operator decides. */
const STILL_OPEN = [401, 403, 409, ...TRY_AGAIN]

const sleep = (delayMs: number) => new Promise((resolve) => setTimeout(resolve, delayMs))

/** 128 random bits. `crypto.randomUUID` is missing on pages without TLS. */
function newKey(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("")
}

/** One thing that a person wants once. Intents of the same name in one tab are the same intent. */
export class Intent {
  readonly #name: string
  readonly #options: IntentOptions
  #running: Promise<Response> | undefined

  constructor(name: string, options: IntentOptions = {}) {
    this.#name = `hapax:${name}`
    this.#options = options
  }

  get #storage(): Storage {
    return this.#options.storage ?? sessionStorage
  }

  /** Whether an earlier attempt, perhaps before a reload, has had no answer yet. */
  get isOpen(): boolean {
    return this.#storage.getItem(this.#name) !== null
  }

  /** The key of this intent. */
  get key(): string {
    const found = this.#storage.getItem(this.#name)
    if (found !== null) return found
    const made = newKey()
    this.#storage.setItem(this.#name, made)
    return made
  }

  /** Ends the intent: the next request has a new key. */
  done(): void {
    this.#storage.removeItem(this.#name)
  }

  /**
   * Sends a request with the intent's key, again with the same key while there is no answer. A second call meanwhile gets the same
   * answer. The intent ends with an answer that is final.
   */
  async fetch(url: string, init: RequestInit = {}): Promise<Response> {
    const running = (this.#running ??= this.#send(url, init))
    try {
      return (await running).clone()
    } finally {
      if (this.#running === running) this.#running = undefined
    }
  }

  async #send(url: string, init: RequestInit): Promise<Response> {
    const { attempts = 6, timeoutMs = 30_000 } = this.#options
    const headers = new Headers(init.headers)
    headers.set("idempotency-key", this.key)
    for (let attempt = 1; ; attempt++) {
      let delayMs = 250 * 2 ** attempt
      const timeout = new AbortController()
      const timer = setTimeout(() => timeout.abort(), timeoutMs)
      try {
        const response = await fetch(url, { ...init, headers, signal: timeout.signal })
        const { status } = response
        if (status < 500 && !STILL_OPEN.includes(status)) this.done()
        const after = Number(response.headers.get("retry-after"))
        // Of the conflicts, only another running attempt says when to ask again.
        const isFinal = status === 409 ? !(after > 0) : !TRY_AGAIN.includes(status)
        if (isFinal || attempt >= attempts) return response
        delayMs = Math.max(delayMs, Math.min(after, 30) * 1000 || 0)
      } catch (error) {
        if (attempt >= attempts) throw error
      } finally {
        clearTimeout(timer)
      }
      await sleep(delayMs)
    }
  }
}

export interface BindOptions extends IntentOptions {
  /** The intent's name; by default the element's id, or the form's action. */
  name?: string | undefined
  onAnswer: (response: Response) => void
  onError?: ((error: unknown) => void) | undefined
}

/** Sends something once when an element is used; the element is busy until there is an answer. */
function bind(element: HTMLElement, event: string, name: string, options: BindOptions, send: (intent: Intent) => Promise<Response>): Intent {
  const intent = new Intent(options.name ?? name, options)
  element.addEventListener(event, async (used) => {
    used.preventDefault()
    // A second click shares the first one's request.
    if (element.ariaBusy === "true") return
    element.ariaBusy = "true"
    try {
      options.onAnswer(await send(intent))
    } catch (error) {
      options.onError?.(error)
    } finally {
      element.ariaBusy = "false"
    }
  })
  return intent
}

/** Sends a form once, urlencoded, to its action. Files are not sent: their encoding differs from attempt to attempt. */
export function bindForm(form: HTMLFormElement, options: BindOptions): Intent {
  return bind(form, "submit", form.id || form.action, options, (intent) => {
    const body = new URLSearchParams(new FormData(form) as unknown as Record<string, string>)
    return intent.fetch(form.action, { method: form.method.toUpperCase() === "GET" ? "POST" : form.method, body })
  })
}

/** Does something once when a button is pressed. */
export function bindButton(button: HTMLElement, options: BindOptions & { send: (intent: Intent) => Promise<Response> }): Intent {
  return bind(button, "click", button.id, options, options.send)
}

export interface JobHandlers {
  /** An event: `stage`, `seq`, `offset`, `data`, `timestamp`. */
  onEvent: (event: Record<string, unknown>) => void
  /** Entries are missing; the state, if there is one, comes next, with `snapshot`. */
  onGap?: ((gap: { from: number; to: number | null }) => void) | undefined
  onSnapshot?: ((state: Record<string, unknown>) => void) | undefined
  /** The job is closed and everything was delivered. */
  onEnd?: (() => void) | undefined
  /** The server refuses: the link has expired, for example. */
  onError?: ((error: Error) => void) | undefined
  /** Keeps the position under this name in `sessionStorage`, so that a reloaded page continues after it. */
  resume?: string | undefined
}

/** Follows a job at this address, across cut connections; every event once and in order. Returns what ends it. */
export function followJob(url: string, handlers: JobHandlers): () => void {
  const place = handlers.resume === undefined ? undefined : `hapax:job:${handlers.resume}`
  let lastId = place === undefined ? null : sessionStorage.getItem(place)
  let stop = new AbortController()
  let isStopped = false
  const follow = async () => {
    for (let failures = 0; !isStopped; failures++) {
      stop = new AbortController()
      let timer: ReturnType<typeof setTimeout> | undefined
      try {
        // In the address: a header of our own would need a preflight on another site.
        const address = new URL(url, location.href)
        if (lastId !== null) address.searchParams.set("last_event_id", lastId)
        const response = await fetch(address, { signal: stop.signal })
        if (response.status === 204) return handlers.onEnd?.()
        if (response.status !== 200 || response.body === null) {
          if (response.status >= 500 || TRY_AGAIN.includes(response.status)) throw 0
          return handlers.onError?.(new Error(`the server answered with status ${response.status}`))
        }
        const alive = () => {
          clearTimeout(timer)
          timer = setTimeout(() => stop.abort(), 45_000)
        }
        alive()
        for await (const frame of readFrames(response.body)) {
          alive()
          failures = -1
          if (isStopped) return
          if (frame.data === "") continue
          const data = JSON.parse(frame.data)
          if (frame.event === "gap") handlers.onGap?.(data)
          else if (frame.event === "snapshot") handlers.onSnapshot?.(data)
          else handlers.onEvent(data)
          if (frame.id !== undefined) {
            lastId = frame.id
            if (place !== undefined) sessionStorage.setItem(place, lastId)
          }
        }
      } catch {
        // The connection was cut, or the server is away: try again.
      } finally {
        clearTimeout(timer)
      }
      await sleep(Math.min(200 * 2 ** Math.max(failures, 0), 10_000))
    }
  }
  void follow()
  return () => {
    isStopped = true
    stop.abort()
  }
}
