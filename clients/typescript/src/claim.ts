/** The part that commands and messages share: a claim that is renewed while a function runs, and then ends. */
import { InvalidRequest, Lost, OutcomeUnknown, StoreUnavailable } from "./errors.js"
import { retryDelay } from "./http.js"
import type { Transport } from "./http.js"
import { Lease } from "./lease.js"
import { pause } from "./runtime.js"
import type { components } from "./schema.js"

/** The facts that a function is told about its run. */
export interface Run {
  /** Grows with every attempt; pass it on with every write. */
  readonly fence: number
  /** 1 for the first attempt. */
  readonly attempt: number
  /** Aborted when another attempt may have taken over. Pass it to what you do. */
  readonly lost: AbortSignal
}

export interface Granted {
  token: string
  fence: number
  attempt: number
}

/** How long the end of a claim is tried again while the server or its store is away. */
const END_FOR_MS = 60_000

/** A granted claim. It ends once: completed, given back, or marked as unknown. */
export class Claim implements Run {
  readonly fence: number
  readonly attempt: number
  readonly #transport: Transport
  readonly #path: readonly string[]
  readonly #token: string
  readonly #lease: Lease

  constructor(transport: Transport, path: readonly string[], granted: Granted, settings: { leaseMs: number; renewForMs: number; since: number }) {
    this.#transport = transport
    this.#path = path
    this.#token = granted.token
    this.fence = granted.fence
    this.attempt = granted.attempt
    this.#lease = new Lease({ ...settings, renew: () => this.#renew(settings.leaseMs, true) })
  }

  get lost(): AbortSignal {
    return this.#lease.lost
  }

  async #renew(leaseMs: number, once: boolean): Promise<void> {
    const body: components["schemas"]["RenewLease"] = { token: this.#token, lease_ms: leaseMs }
    await this.#transport.call({ method: "PATCH", path: this.#path, body, afterLostAnswer: "repeat", once })
  }

  /**
   * Ends the claim with this value. The effect has happened: while the store is away this is tried
   * again, and the lease renewed. Throws `Lost`, or `OutcomeUnknown` if it did not succeed.
   */
  async complete(fields: object, forMs = END_FOR_MS): Promise<void> {
    const until = performance.now() + forMs
    const body = { token: this.#token, ...fields }
    try {
      for (let attempt = 0; ; attempt++) {
        try {
          await this.#transport.call({ method: "PUT", path: this.#path, body, afterLostAnswer: "repeat", once: true })
          this.#lease.end()
          return
        } catch (error) {
          if (!(error instanceof StoreUnavailable)) throw error
          const delay = retryDelay(attempt, error.retryAfterMs)
          if (performance.now() + delay > until) {
            throw new OutcomeUnknown("the function ran, but its result could not be stored", { cause: error })
          }
          await pause(delay)
        }
      }
    } catch (error) {
      // The server refuses this value: another one may still end the claim.
      if (!(error instanceof InvalidRequest)) this.#lease.end()
      throw error
    }
  }

  /** Gives the claim back: nothing happened, and a retry may run. */
  async giveBack(): Promise<void> {
    this.#lease.end()
    try {
      await this.#transport.giveBack(this.#path, this.#token)
    } catch (error) {
      // Where another attempt has taken over there is nothing to give back; where the server is
      // away the outcome becomes unknown when the lease ends, which is the safe side.
      if (!(error instanceof Lost || error instanceof StoreUnavailable)) throw error
    }
  }

  /** Marks the outcome as unknown at once, instead of when the lease ends. */
  async abandon(): Promise<void> {
    this.#lease.end()
    try {
      await this.#renew(1, false)
    } catch (error) {
      if (!(error instanceof Lost || error instanceof StoreUnavailable)) throw error
    }
  }

  /** Runs a function; gives the claim back if it fails, unless it says that its outcome is unknown. */
  async run<T>(work: (run: Run) => T | Promise<T>): Promise<T> {
    try {
      return await work(this)
    } catch (error) {
      await (error instanceof OutcomeUnknown ? this.abandon() : this.giveBack())
      throw error
    }
  }
}
