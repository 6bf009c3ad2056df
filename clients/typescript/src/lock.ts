import { Busy, Lost, StoreUnavailable } from "./errors.js"
import { checkedDuration, checkedName, parseAnswer } from "./http.js"
import type { Transport } from "./http.js"
import { Lease } from "./lease.js"
import type { components } from "./schema.js"

type TakenLock = components["schemas"]["TakenLock"]
type TakeLock = components["schemas"]["TakeLock"]
type RenewLock = components["schemas"]["RenewLock"]

// Node before 18.18 and older browsers have no such symbol; `await using` compiled by TypeScript needs it.
const symbols = Symbol as { asyncDispose?: symbol }
symbols.asyncDispose ??= Symbol.for("Symbol.asyncDispose")

export interface LockOptions {
  /** How long the lock lasts without renewal; 30 s by default, at most an hour. */
  ttlMs?: number | undefined
  /** How long to wait if the lock is held; by default not at all. */
  waitMs?: number | undefined
  /** For how long the lock is renewed in the background; an hour by default, 0: never. */
  renewForMs?: number | undefined
  /** Ends the waiting. */
  signal?: AbortSignal | undefined
}

/** The longest that one request may wait at the server. */
const MAX_WAIT = 60_000

/** A lock that this process holds. Leave it with `await using`, or `release()`. */
export class Lock implements AsyncDisposable {
  /** Grows with every grant of this lock; pass it on with every write. */
  readonly fence: number
  readonly #giveBack: () => Promise<void>
  readonly #lease: Lease
  #released: Promise<void> | undefined

  /** @internal */
  constructor(fence: number, lease: Lease, giveBack: () => Promise<void>) {
    this.fence = fence
    this.#lease = lease
    this.#giveBack = giveBack
  }

  /** Aborted when the lock may belong to another owner. Pass it to what you do under the lock. */
  get lost(): AbortSignal {
    return this.#lease.lost
  }

  /** Whether the lock is still held, as far as this process knows. */
  get held(): boolean {
    return this.#lease.isValid
  }

  /** Gives the lock back. Throws `Lost` if it belonged to another owner by then. */
  release(): Promise<void> {
    this.#lease.end()
    this.#released ??= this.#giveBack()
    return this.#released
  }

  /**
   * Gives the lock back at the end of an `await using` block. A lock that is lost belongs to nobody
   * or to another owner, and one whose server is away expires by itself: neither is an error here.
   */
  async [Symbol.asyncDispose](): Promise<void> {
    try {
      await this.release()
    } catch (error) {
      if (!(error instanceof Lost || error instanceof StoreUnavailable)) throw error
    }
  }
}

/** Takes a lock, or throws `Busy`. */
export async function takeLock(transport: Transport, name: string, options: LockOptions = {}): Promise<Lock> {
  const path = ["locks", checkedName("name", name)]
  const leaseMs = checkedDuration("ttlMs", options.ttlMs ?? 30_000, 1, 3_600_000)
  const renewForMs = checkedDuration("renewForMs", options.renewForMs ?? 3_600_000, 0, Number.MAX_SAFE_INTEGER)
  const until = performance.now() + checkedDuration("waitMs", options.waitMs ?? 0, 0, 86_400_000)
  for (let lost = 0; ; ) {
    const waitMs = Math.round(Math.min(Math.max(until - performance.now(), 0), MAX_WAIT))
    const body: TakeLock = { ttl_ms: leaseMs, wait_ms: waitMs }
    let since = performance.now()
    try {
      const call = { method: "POST", path, body, waitMs, signal: options.signal }
      const taken = parseAnswer<TakenLock>(await transport.call({ ...call, afterLostAnswer: "repeat" }))
      const renewal: RenewLock = { token: taken.token, ttl_ms: leaseMs }
      const renew = async () => {
        await transport.call({ method: "PUT", path, body: renewal, afterLostAnswer: "repeat", once: true })
      }
      if (performance.now() - since > leaseMs / 3) {
        // The lock was granted at some time of a long wait: its renewal says from when it counts.
        since = performance.now()
        await renew()
      }
      const lease = new Lease({ leaseMs, renewForMs, since, renew })
      return new Lock(taken.fence, lease, () => transport.giveBack(path, taken.token))
    } catch (error) {
      if (error instanceof Busy && performance.now() < until) continue
      // The lock had ended before the answer was here: take it again.
      if (error instanceof Lost && lost++ < 3) continue
      throw error
    }
  }
}
