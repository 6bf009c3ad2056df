/** Starts real hapax servers for the tests. */
import assert from "node:assert/strict"
import { spawn } from "node:child_process"
import type { ChildProcess } from "node:child_process"
import { randomUUID } from "node:crypto"
import { mkdtempSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { connect } from "../src/index.js"
import type { Client, ConnectOptions } from "../src/index.js"

export const BINARY = process.env["HAPAX_TEST_BIN"] ?? "hapax"

/** A bound for everything that a test waits for; a stalled machine must not fail a test. */
export const PATIENCE_MS = 60_000

/** A process that listens, and what ends it. */
export interface Listening {
  url: string
  process: ChildProcess
  stop: () => Promise<void>
}

export interface Server extends Listening {
  client: (options?: ConnectOptions) => Client
}

/** Starts a program and waits until it says where it listens. */
export async function startListening(program: string, args: string[], env: Record<string, string> = {}): Promise<Listening> {
  const child = spawn(program, args, { stdio: ["ignore", "pipe", "pipe"], cwd: mkdtemp(), env: { ...process.env, ...env } })
  let output = ""
  const url = await new Promise<string>((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error(`the server did not start:\n${output}`)), PATIENCE_MS)
    const read = (chunk: Buffer) => {
      output += chunk.toString()
      const found = /listen(?:s|ing) on (http:\/\/[0-9.:]+)\s/.exec(output)
      if (found?.[1] !== undefined) {
        clearTimeout(timer)
        resolve(found[1])
      }
    }
    child.stdout.on("data", read)
    child.stderr.on("data", read)
    child.on("exit", (code) => reject(new Error(`the server ended with ${code}:\n${output}`)))
  })
  const ended = new Promise<void>((resolve) => child.on("exit", () => resolve()))
  const stop = async () => {
    child.kill("SIGKILL")
    await ended
  }
  return { url, process: child, stop }
}

/** Starts `hapax serve` on a free port and waits until it is ready. */
export async function startServer(store: string, flags: string[] = [], listen = "127.0.0.1:0"): Promise<Server> {
  const started = await startListening(BINARY, ["serve", "--listen", listen, "--store", store, ...flags])
  const { url } = started
  // A store on a busy machine may need some time for its tables.
  await until("the server is ready", async () => (await fetch(`${url}/readyz`)).ok)
  return { ...started, client: (options = {}) => connect({ url, retryForMs: PATIENCE_MS, ...options }) }
}

const folders: string[] = []
process.on("exit", () => folders.forEach((folder) => rmSync(folder, { recursive: true, force: true })))

/** A temporary folder, removed at the end of the process. */
export function mkdtemp(): string {
  const folder = mkdtempSync(join(tmpdir(), "hapax-ts-"))
  folders.push(folder)
  return folder
}

/** The stores of this run: SQLite always, Redis and PostgreSQL where `with-servers` has started them. */
export function stores(): [name: string, url: string][] {
  const found: [string, string][] = [["sqlite", `sqlite:${join(mkdtemp(), "hapax.db")}`]]
  for (const [name, variable] of [["redis", "HAPAX_TEST_REDIS_URL"], ["postgres", "HAPAX_TEST_POSTGRES_URL"]] as const) {
    const url = process.env[variable]
    if (url !== undefined) found.push([name, url])
    else if (process.env["CI"] !== undefined) throw new Error(`${variable} is not set`)
  }
  return found
}

/** A name that no other test uses: the stores are shared. */
export function unique(prefix: string): string {
  return `${prefix}-${randomUUID()}`
}

/** Waits until a condition holds. */
export async function until(what: string, holds: () => boolean | Promise<boolean>): Promise<void> {
  const end = performance.now() + PATIENCE_MS
  while (!(await holds())) {
    assert.ok(performance.now() < end, `waited in vain: ${what}`)
    await new Promise((resolve) => setTimeout(resolve, 10))
  }
}

/** Waits until a signal is aborted. */
export async function aborted(signal: AbortSignal): Promise<void> {
  await until("the signal is aborted", () => signal.aborted)
}

/** All items of an async iteration. */
export async function collect<T>(items: AsyncIterable<T>): Promise<T[]> {
  const found: T[] = []
  for await (const item of items) found.push(item)
  return found
}
