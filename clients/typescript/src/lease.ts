import { HapaxError, Lost } from "./errors.js"
import { startTimer } from "./runtime.js"

export interface LeaseSettings {
  /** How long the owner is believed alive without renewal. */
  leaseMs: number
  /** For how long the lease is renewed; 0: never. */
  renewForMs: number
  /** When the request that took the lease was sent, by `performance.now()`. */
  since: number
  /** Asks the server for another `leaseMs`. */
  renew: () => Promise<void>
}

/**
 * Renews a lease every third of its time. The lease counts from before its request was sent, so
 * that the owner never believes in it longer than the server does.
 */
export class Lease {
  readonly #settings: LeaseSettings
  readonly #lost = new AbortController()
  #validUntil: number
  #stopRenewal: () => void
  #stopDeadline: () => void = () => {}
  #ended = false

  constructor(settings: LeaseSettings) {
    this.#settings = settings
    this.#validUntil = settings.since + settings.leaseMs
    this.#watchDeadline()
    this.#stopRenewal = settings.renewForMs > 0 ? startTimer(() => void this.#renew(), settings.leaseMs / 3) : () => {}
  }

  /** Aborted when the lease is over although its work is not. */
  get lost(): AbortSignal {
    return this.#lost.signal
  }

  /** Whether the lease is still valid, as far as this process knows. */
  get isValid(): boolean {
    return !this.#ended && !this.#lost.signal.aborted && performance.now() < this.#validUntil
  }

  /** Stops the renewal: the work is done. */
  end(): void {
    this.#ended = true
    this.#stopRenewal()
    this.#stopDeadline()
  }

  #lose(reason: HapaxError): void {
    if (this.#ended) return
    this.end()
    this.#lost.abort(reason)
  }

  #watchDeadline(): void {
    this.#stopDeadline()
    const left = this.#validUntil - performance.now()
    this.#stopDeadline = startTimer(() => {
      if (performance.now() < this.#validUntil) return this.#watchDeadline()
      this.#lose(new Lost("the lease ended before it was renewed; another owner may have taken over"))
    }, Math.max(left, 0))
  }

  async #renew(): Promise<void> {
    const { leaseMs, renewForMs, since, renew } = this.#settings
    const began = performance.now()
    // After the last renewal the lease lasts as long as it lasts; then `lost` is aborted.
    if (this.#ended || began - since >= renewForMs) return
    let next = leaseMs / 3
    try {
      await renew()
      if (this.#ended) return
      this.#validUntil = began + leaseMs
      this.#watchDeadline()
    } catch (error) {
      if (this.#ended) return
      if (error instanceof Lost) return this.#lose(error)
      next = Math.min(next, 500)
    }
    this.#stopRenewal = startTimer(() => void this.#renew(), next)
  }
}
