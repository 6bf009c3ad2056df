/** A body's JSON with sorted members, in which numbers stay as they are written: 1 is not 1.0. */
import { textOf } from "../runtime.js"

const TOKEN = /[ \t\n\r]*(?:([{}[\],:])|("(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*")|(-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?)|(true|false|null))/y
/** Deeper documents are compared byte by byte. */
const MAX_DEPTH = 128

/** The text to hash instead of the body; `undefined` where the body is no JSON, or repeats a member, so that every byte counts. */
export function canonicalBody(body: Uint8Array): string | undefined {
  const text = textOf(body)
  if (text === undefined) return undefined
  const reader = new RegExp(TOKEN)
  const next = (): RegExpExecArray => {
    const found = reader.exec(text)
    if (found === null) throw new SyntaxError("no JSON")
    return found
  }
  try {
    const json = readValue(next(), next, 0)
    return /^[ \t\n\r]*$/.test(text.slice(reader.lastIndex)) ? json : undefined
  } catch {
    return undefined
  }
}

function readValue(token: RegExpExecArray, next: () => RegExpExecArray, depth: number): string {
  const [, mark, string, number, word] = token
  if (string !== undefined) return JSON.stringify(JSON.parse(string))
  if (number !== undefined) return number
  if (word !== undefined) return word
  if (depth > MAX_DEPTH || (mark !== "{" && mark !== "[")) throw new SyntaxError("no JSON")
  return mark === "[" ? readItems(next, depth) : readMembers(next, depth)
}

function readItems(next: () => RegExpExecArray, depth: number): string {
  const items: string[] = []
  let token = next()
  if (token[1] === "]") return "[]"
  for (;;) {
    items.push(readValue(token, next, depth + 1))
    const after = next()[1]
    if (after === "]") return `[${items.join(",")}]`
    if (after !== ",") throw new SyntaxError("no JSON")
    token = next()
  }
}

function readMembers(next: () => RegExpExecArray, depth: number): string {
  const members = new Map<string, string>()
  let token = next()
  if (token[1] === "}") return "{}"
  for (;;) {
    if (token[2] === undefined || next()[1] !== ":") throw new SyntaxError("no JSON")
    const name = JSON.stringify(JSON.parse(token[2]))
    // Parsers differ in which of two members with one name they take.
    if (members.has(name)) throw new SyntaxError("a repeated member")
    members.set(name, readValue(next(), next, depth + 1))
    const after = next()[1]
    if (after === "}") {
      const sorted = [...members].sort(([a], [b]) => (a < b ? -1 : 1))
      return `{${sorted.map(([name, value]) => `${name}:${value}`).join(",")}}`
    }
    if (after !== ",") throw new SyntaxError("no JSON")
    token = next()
  }
}
