import type { Run } from "./claim.js"
import { beginCommand, once } from "./command.js"
import type { Begun, BeginOptions, Once, OnceOptions } from "./command.js"
import { Busy } from "./errors.js"
import { follow, jobState, publish } from "./events.js"
import type { Followed, FollowOptions, JobState, PublishOptions } from "./events.js"
import { Transport } from "./http.js"
import type { ConnectOptions } from "./http.js"
import { Inbox } from "./inbox.js"
import { takeLock } from "./lock.js"
import type { Lock, LockOptions } from "./lock.js"
import { RecordHandle } from "./record.js"
import type { components } from "./schema.js"

/** A hapax server, for one caller. It holds no connection of its own, so it needs no closing. */
export class Client {
  readonly #transport: Transport

  /** @internal */
  constructor(options: ConnectOptions) {
    this.#transport = new Transport(options)
  }

  /** Takes a lock, which is renewed in the background. Throws `Busy` if it is held after `waitMs`. */
  lock(name: string, options?: LockOptions): Promise<Lock> {
    return takeLock(this.#transport, name, options)
  }

  /** Takes a lock; `undefined` if it is held after `waitMs`. */
  async tryLock(name: string, options?: LockOptions): Promise<Lock | undefined> {
    try {
      return await this.lock(name, options)
    } catch (error) {
      if (error instanceof Busy) return undefined
      throw error
    }
  }

  /** Runs a function under a lock and gives the lock back, for code without `await using`. */
  async withLock<T>(name: string, options: LockOptions, work: (lock: Lock) => T | Promise<T>): Promise<T> {
    const lock = await this.lock(name, options)
    try {
      return await work(lock)
    } finally {
      await lock[Symbol.asyncDispose]()
    }
  }

  /**
   * Runs a function once for a key. Every other call, now or within the retention, gets its result.
   *
   * A function that throws may run again: the command is given back. If it cannot know whether it
   * acted, it throws `OutcomeUnknown`, and no retry runs until an operator has decided.
   */
  once<T>(operation: string, key: string, work: (run: Run) => T | Promise<T>, options: OnceOptions = {}): Promise<Once<T>> {
    return once(this.#transport, operation, key, work, options)
  }

  /** Begins a command step by step: run it and complete it, or take the stored response. */
  begin(operation: string, key: string, options: BeginOptions = {}): Promise<Begun> {
    return beginCommand(this.#transport, operation, key, options)
  }

  /** The record under this key. */
  record<T = unknown>(key: string): RecordHandle<T> {
    return new RecordHandle<T>(this.#transport, key)
  }

  /** Publishes an event of a job. The same event again is recognised: `published` is false then. */
  publish(domain: string, jobId: string, stage: string, seq: number, data: unknown, options: PublishOptions = {}): Promise<components["schemas"]["PublishedEvent"]> {
    const event: components["schemas"]["PublishEvent"] = { domain, job_id: jobId, stage, seq, data, final: options.final ?? false }
    if (options.timestamp !== undefined) event.timestamp = options.timestamp
    return publish(this.#transport, event, options.signal)
  }

  /** Follows a job: every event once and in order, across cut connections and restarts, to the job's end. */
  follow<T = unknown>(domain: string, jobId: string, options: FollowOptions = {}): AsyncGenerator<Followed<T>, void, undefined> {
    return follow<T>(this.#transport, domain, jobId, options)
  }

  /** The state of a job: its event with the highest `seq`. `undefined` where the job has no events. */
  job<T = unknown>(domain: string, jobId: string): Promise<JobState<T> | undefined> {
    return jobState<T>(this.#transport, domain, jobId)
  }

  /** The inbox of a consumer. */
  inbox(consumer: string): Inbox {
    return new Inbox(this.#transport, consumer)
  }
}

/** Connects to a hapax server. Nothing is sent before the first call. */
export function connect(options: ConnectOptions = {}): Client {
  return new Client(options)
}
