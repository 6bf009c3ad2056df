/** The few things that differ between Node, Deno, Bun, edge runtimes and browsers. */

interface WebCrypto {
  subtle: { digest(name: string, data: Uint8Array): Promise<ArrayBuffer> }
}

let crypto: Promise<WebCrypto> | undefined

/** Web Crypto. Node 18 has it in a module only; its name is a variable so that bundlers for other runtimes ignore it. */
function webCrypto(): Promise<WebCrypto> {
  const shared = (globalThis as { crypto?: WebCrypto }).crypto
  if (shared?.subtle) return Promise.resolve(shared)
  const name = "node:crypto"
  crypto ??= (import(name) as Promise<{ webcrypto: WebCrypto }>).then((module) => module.webcrypto)
  return crypto
}

/** A variable of the environment, where the runtime has one. */
export function environment(name: string): string | undefined {
  const { process } = globalThis as { process?: { env?: Record<string, string | undefined> } }
  return process?.env?.[name] || undefined
}

/**
 * SHA-256 over the parts, each preceded by its length, in hex: the fingerprint of the Rust library.
 * Moving a byte from one part to the next changes it.
 */
export async function fingerprintOf(parts: readonly Uint8Array[]): Promise<string> {
  const total = parts.reduce((sum, part) => sum + 8 + part.length, 0)
  const bytes = new Uint8Array(total)
  const view = new DataView(bytes.buffer)
  let at = 0
  for (const part of parts) {
    view.setBigUint64(at, BigInt(part.length))
    bytes.set(part, at + 8)
    at += 8 + part.length
  }
  const digest = new Uint8Array(await (await webCrypto()).subtle.digest("SHA-256", bytes))
  return Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("")
}

const encoder = new TextEncoder()

export function utf8(text: string): Uint8Array {
  return encoder.encode(text)
}

/** The bytes as text; `undefined` where they are not UTF-8. */
export function textOf(bytes: Uint8Array): string | undefined {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes)
  } catch {
    return undefined
  }
}

export function toBase64(bytes: Uint8Array): string {
  let text = ""
  // In pieces, because a call takes a limited number of arguments.
  for (let at = 0; at < bytes.length; at += 0x8000) {
    text += String.fromCharCode(...bytes.subarray(at, at + 0x8000))
  }
  return btoa(text)
}

export function fromBase64(text: string): Uint8Array {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0))
}

/** JSON with sorted members, so that the order in which they were written does not count. */
export function canonicalJson(value: unknown): string {
  const sorted = (_: string, item: unknown): unknown =>
    item !== null && typeof item === "object" && !Array.isArray(item)
      ? Object.fromEntries(Object.entries(item).sort(([a], [b]) => (a < b ? -1 : 1)))
      : item
  return JSON.stringify(value, sorted) ?? "null"
}

/** Starts a timer that does not keep a Node process alive. */
export function startTimer(run: () => void, delayMs: number): () => void {
  const timer = setTimeout(run, delayMs) as unknown as { unref?: () => void }
  timer.unref?.()
  return () => clearTimeout(timer as unknown as number)
}

/** Waits; rejects with the signal's reason if it is aborted meanwhile. */
export function pause(delayMs: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason)
    const abort = () => {
      clearTimeout(timer)
      reject(signal?.reason)
    }
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", abort)
      resolve()
    }, delayMs)
    signal?.addEventListener("abort", abort, { once: true })
  })
}
