/** Reads the key, the caller and the fingerprint of a request, as the Rust layer does. */
import { fingerprintOf, utf8 } from "../runtime.js"
import { canonicalBody } from "./canonical.js"
import { RefusedRequest } from "./problem.js"

/** The head of a request. */
export interface RequestHead {
  method: string
  /** The path as the client sent it, without the query. */
  path: string
  /** Without the question mark. */
  query: string
  /** All values of a header, by its name in lower case. */
  values: (name: string) => string[]
}

/** The caller that a key belongs to. */
export type CallerScope =
  | "authorization"
  | "single"
  | { header: string }
  | { cookie: string }
  | ((head: RequestHead) => string | undefined)

export interface KeyOptions {
  /** The methods that take keys; POST and PATCH by default. */
  methods?: readonly string[] | undefined
  /** Refuses requests of these methods without a key. */
  requireKey?: boolean | undefined
  /**
   * How the caller is identified: by a hash of all credentials in the head (`authorization`, the default), of a header that a trusted
   * hop sets, of a cookie, or of what a function returns; `single`: all requests have the same caller.
   */
  scope?: CallerScope | undefined
  /** Headers that identify a caller beside `Authorization`. */
  credentialHeaders?: readonly string[] | undefined
  /** The part of a body that makes two requests the same: every byte (the default), or its JSON value. */
  fingerprint?: "bytes" | "json" | undefined
}

/** A key with its caller and operation. */
export interface RequestKey {
  key: string
  /** `METHOD /path`; a path that cannot be part of a name is represented by its hash. */
  operation: string
  /** A hash of the caller; `undefined` where all requests have the same caller. */
  caller: string | undefined
}

export const CREDENTIAL_HEADERS = ["x-api-key", "api-key", "x-auth-token", "x-access-token"]
const METHOD_OVERRIDES = ["x-http-method-override", "x-http-method", "x-method-override"]
const SAFE_METHODS = new Set(["GET", "HEAD", "OPTIONS", "TRACE"])
const BARE_SCHEME = /^(basic|bearer|digest|negotiate|token)$/i

/** The key of a request; `undefined` where it has none and needs none. Throws `RefusedRequest`. */
export async function readKey(head: RequestHead, options: KeyOptions): Promise<RequestKey | undefined> {
  const methods = (options.methods ?? ["POST", "PATCH"]).filter((method) => !SAFE_METHODS.has(method))
  if (!methods.includes(head.method)) {
    refuseDisguisedMethod(head, methods, options)
    return undefined
  }
  const key = parseKey(head.values("idempotency-key"))
  if (key === undefined) {
    if (!options.requireKey) return undefined
    throw new RefusedRequest("key-missing", "send an Idempotency-Key header with a value of your own, the same for every retry")
  }
  const caller = await callerOf(head, options)
  const operation = `${head.method} ${head.path}`
  if (/^[\x20-\x7e]{1,200}$/.test(operation)) return { key, operation, caller }
  return { key, operation: `${head.method} sha256:${await fingerprintOf([utf8(operation)])}`, caller }
}

/** Refuses a method that takes no key and asks to be treated as one that does: the handler would run it unprotected. */
function refuseDisguisedMethod(head: RequestHead, methods: string[], options: KeyOptions): void {
  if (!options.requireKey && head.values("idempotency-key").length === 0) return
  const named = METHOD_OVERRIDES.flatMap((name) => head.values(name)).map((value) => value.trim().toUpperCase())
  if (!named.some((method) => methods.includes(method))) return
  throw new RefusedRequest(
    "invalid-request",
    "the method takes no key, and a method override names one that does; send the request with that method itself; nothing was run",
  )
}

/** The key of an `Idempotency-Key` header: an RFC 8941 string (`"k1"`), or the same text bare (`k1`). */
export function parseKey(lines: readonly string[]): string | undefined {
  if (lines.length === 0) return undefined
  const refuse = (detail: string) => new RefusedRequest("invalid-key", detail)
  if (lines.length > 1) throw refuse("there are several Idempotency-Key headers; send one")
  let key = (lines[0] ?? "").trim()
  if (key.startsWith('"')) {
    if (!/^"(?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])*"$/.test(key)) {
      throw refuse('Idempotency-Key starts with a quote but is no RFC 8941 string; send "key" or key')
    }
    key = key.slice(1, -1).replace(/\\(.)/g, "$1")
  }
  if (!/^[\x21-\x7e]{1,255}$/.test(key)) {
    throw refuse("Idempotency-Key: a key has 1 to 255 bytes of printable ASCII without spaces")
  }
  return key
}

/** The hash of a caller. All values of a repeated header count, so that adding another caller's value impersonates nobody. */
async function callerOf(head: RequestHead, options: KeyOptions): Promise<string | undefined> {
  const scope = options.scope ?? "authorization"
  if (scope === "single") return undefined
  let kind: string
  let values: string[]
  if (scope === "authorization") {
    ;[kind, values] = credentialsOf(head, options.credentialHeaders ?? CREDENTIAL_HEADERS)
  } else {
    const found = typeof scope === "function" ? [scope(head) ?? ""] : "header" in scope ? head.values(scope.header.toLowerCase()) : cookiesOf(head, scope.cookie)
    kind = typeof scope === "function" ? "function" : "header" in scope ? "header" : "cookie"
    values = found.filter((value) => value.trim() !== "")
    if (values.length === 0) {
      throw new RefusedRequest(
        "scope-missing",
        "a key belongs to its caller: send the header or cookie that the service is configured to identify callers by",
      )
    }
  }
  return (await fingerprintOf([kind, ...values].map(latin1))).slice(0, 32)
}

function credentialsOf(head: RequestHead, names: readonly string[]): [kind: string, values: string[]] {
  const nonEmpty = (name: string) => head.values(name).filter((value) => value.trim() !== "")
  const authorization = nonEmpty("authorization").filter((value) => !BARE_SCHEME.test(value.trim()))
  const others = names.map((name) => name.toLowerCase()).flatMap((name) => nonEmpty(name).map((value) => `${name}:${value}`))
  const onlyBasic = others.length === 0 && authorization.every((value) => /^\s*basic(\s|$)/i.test(value))
  if (onlyBasic && nonEmpty("cookie").length > 0) {
    throw new RefusedRequest(
      "scope-missing",
      "a key belongs to its caller, and a cookie beside no credentials, or beside nothing but Basic, does not say which part of it identifies " +
        "the caller: send a token, or configure the `scope` (a cookie, a header or single)",
    )
  }
  if (others.length === 0) return ["authorization", authorization]
  return ["credentials", [...authorization.map((value) => `authorization:${value}`), ...others]]
}

function cookiesOf(head: RequestHead, name: string): string[] {
  const pairs = head.values("cookie").flatMap((line) => line.split(";"))
  return pairs.flatMap((pair) => {
    const equals = pair.indexOf("=")
    return equals >= 0 && pair.slice(0, equals).trim() === name ? [pair.slice(equals + 1).trim()] : []
  })
}

/** The fingerprint of a request: method, path, query, content type and body count. */
export function fingerprintOfRequest(head: RequestHead, body: Uint8Array, options: KeyOptions): Promise<string> {
  const canonical = options.fingerprint === "json" ? canonicalBody(body) : undefined
  const overrides = METHOD_OVERRIDES.flatMap((name) => head.values(name).flatMap((value) => [name, value]))
  const [contentType = ""] = head.values("content-type")
  return fingerprintOf([
    ...[head.method, head.path, head.query, contentType].map(latin1),
    canonical === undefined ? body : utf8(canonical),
    ...overrides.map(latin1),
  ])
}

/** The bytes of a header's value: runtimes give them as one character each. */
function latin1(text: string): Uint8Array {
  return /^[\x00-\xff]*$/.test(text) ? Uint8Array.from(text, (character) => character.charCodeAt(0)) : utf8(text)
}
