// Writes the types of the server's API that this package uses: node generate.mjs OPENAPI_JSON OUTPUT_TS
//
// Only the structure of these schemas is written, so that a changed description, or a change of another
// part of the API, is no drift.
import { readFile, writeFile } from "node:fs/promises"
import openapiTS, { astToString } from "openapi-typescript"

const used = [
  "BeginCommand",
  "BegunCommand",
  "CompleteCommand",
  "CompletedCommand",
  "JobState",
  "KnownMessage",
  "NewMessage",
  "ProblemDocument",
  "PublishEvent",
  "PublishedEvent",
  "ReceiveMessage",
  "RenewLease",
  "RenewLock",
  "TakeLock",
  "TakenLock",
]
const [input, output] = process.argv.slice(2)
const described = JSON.parse(await readFile(input, "utf8")).components.schemas

const schemas = {}
function add(name) {
  if (schemas[name] !== undefined) return
  if (described[name] === undefined) throw new Error(`the server's API has no schema ${name} any more`)
  schemas[name] = structureOf(described[name], false)
}
/** The node without its descriptions; adds the schemas that it refers to. A property may be called `description`. */
function structureOf(node, isMap) {
  if (Array.isArray(node)) return node.map((item) => structureOf(item, false))
  if (node === null || typeof node !== "object") return node
  if (!isMap && typeof node.$ref === "string") add(node.$ref.split("/").pop())
  const kept = Object.entries(node).filter(([name]) => isMap || !["description", "example", "title"].includes(name))
  return Object.fromEntries(kept.map(([name, value]) => [name, structureOf(value, name === "properties" && !isMap)]))
}
used.forEach(add)
const sorted = Object.fromEntries(Object.entries(schemas).sort(([a], [b]) => (a < b ? -1 : 1)))
const reduced = { openapi: "3.1.0", info: { title: "hapax", version: "1" }, paths: {}, components: { schemas: sorted } }
const text = astToString(await openapiTS(reduced, { defaultNonNullable: false }))
await writeFile(output, `// Generated from the server's /openapi.json by generate.mjs; \`./test.sh --update\` writes it anew.\n\n${text}`)
