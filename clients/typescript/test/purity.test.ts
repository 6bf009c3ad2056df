/** The core, and all but the entries for Node, need no module of Node: edge runtimes and browsers have none. */
import assert from "node:assert/strict"
import { test } from "node:test"
import { build } from "esbuild"

test("only the entries for Express and Fastify import modules of Node", async () => {
  const importsNode = async (entry: string) => {
    const bundle = build({ entryPoints: [`src/${entry}.ts`], bundle: true, write: false, logLevel: "silent", platform: "neutral" })
    return bundle.then(() => false, () => true)
  }
  for (const entry of ["index", "hono", "pg", "browser"]) assert.equal(await importsNode(entry), false, entry)
  for (const entry of ["express", "fastify"]) assert.equal(await importsNode(entry), true, entry)
})
