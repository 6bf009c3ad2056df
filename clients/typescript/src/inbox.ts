import { Claim } from "./claim.js"
import type { Granted, Run } from "./claim.js"
import { InvalidRequest } from "./errors.js"
import { checkedDuration, checkedName, parseAnswer } from "./http.js"
import type { Transport } from "./http.js"
import type { components } from "./schema.js"

type ReceiveMessage = components["schemas"]["ReceiveMessage"]

export interface InboxOptions {
  /** How long a consumer is believed alive without renewal; 30 s by default. */
  leaseMs?: number | undefined
  /** For how long the lease is renewed in the background; an hour by default. */
  renewForMs?: number | undefined
  /** How long the message is recognised; 30 days by default. */
  retentionMs?: number | undefined
  signal?: AbortSignal | undefined
}

/** The outcome of a message: a duplicate, or the result of its effect. */
export type Received<T> = { duplicate: true } | { duplicate: false; value: T }

/** Recognises the messages of one consumer that have had their effect. */
export class Inbox {
  readonly #transport: Transport
  readonly #consumer: string

  /** @internal */
  constructor(transport: Transport, consumer: string) {
    this.#transport = transport
    this.#consumer = checkedName("consumer", consumer)
  }

  /**
   * Runs the effect of a message once. Throws `Busy` while another consumer handles the message: do
   * not acknowledge it then. An effect that throws may run again with the next delivery.
   */
  async once<T>(messageId: string, work: (run: Run) => T | Promise<T>, options: InboxOptions = {}): Promise<Received<T>> {
    if (typeof work !== "function") throw new InvalidRequest("`work` must be a function")
    const path = ["inbox", this.#consumer, checkedName("messageId", messageId)]
    const leaseMs = checkedDuration("leaseMs", options.leaseMs ?? 30_000, 1, 3_600_000)
    const renewForMs = checkedDuration("renewForMs", options.renewForMs ?? 3_600_000, 0, Number.MAX_SAFE_INTEGER)
    const body: ReceiveMessage = { lease_ms: leaseMs }
    if (options.retentionMs !== undefined) {
      body.retention_ms = checkedDuration("retentionMs", options.retentionMs, 1, 31_622_400_000)
    }
    const call = { method: "POST", path, body, signal: options.signal }
    const answer = await this.#transport.call({ ...call, afterLostAnswer: "repeat" })
    if (answer.status === 200) return { duplicate: true }
    const granted = parseAnswer<Granted>(answer)
    const claim = new Claim(this.#transport, path, granted, { leaseMs, renewForMs, since: performance.now() })
    const value = await claim.run(work)
    await claim.complete({})
    return { duplicate: false, value }
  }
}
