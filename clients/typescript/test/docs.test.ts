/** Every block of the guide is type-checked and run. */
import assert from "node:assert/strict"
import { execFileSync, spawn, spawnSync } from "node:child_process"
import { mkdirSync, rmSync, writeFileSync } from "node:fs"
import { createServer } from "node:net"
import type { AddressInfo } from "node:net"
import { join } from "node:path"
import { after, before, test } from "node:test"
import { readGuide } from "./guide.js"
import { PATIENCE_MS, mkdtemp, startServer, unique, until } from "./support.js"
import type { Server } from "./support.js"

/** Inside the package, so that `hapax-client` is its own name. */
const FOLDER = "docs-blocks"
const blocks = readGuide("ts")
const database = process.env["HAPAX_TEST_POSTGRES_URL"]

let server: Server
before(async () => {
  server = await startServer(`sqlite:${join(mkdtemp(), "hapax.db")}`)
  if (database !== undefined) execFileSync(process.env["HAPAX_TEST_BIN"] ?? "hapax", ["migrate", "--store", database])
  rmSync(FOLDER, { recursive: true, force: true })
  mkdirSync(FOLDER)
  blocks.forEach((block, at) => writeFileSync(join(FOLDER, `block-${at}.ts`), block))
  const options = { extends: "../tsconfig.json", compilerOptions: { rootDir: ".", outDir: ".", noPropertyAccessFromIndexSignature: false, declaration: false }, include: ["*.ts"] }
  writeFileSync(join(FOLDER, "tsconfig.json"), JSON.stringify(options))
})
after(() => server.stop())

test("the guide has blocks, and they have no type errors", () => {
  assert.ok(blocks.length >= 12)
  const checked = spawnSync(process.execPath, ["node_modules/typescript/bin/tsc", "-p", FOLDER], { encoding: "utf8" })
  assert.equal(checked.status, 0, checked.stdout)
})

async function freePort(): Promise<number> {
  const listener = createServer()
  await new Promise<void>((resolve) => listener.listen(0, "127.0.0.1", resolve))
  const { port } = listener.address() as AddressInfo
  await new Promise((resolve) => listener.close(resolve))
  return port
}

blocks.forEach((block, at) => {
  const title = `block ${at}: ${/from "(hapax-client[^"]*)"/.exec(block)?.[1]} ${block.includes("listen(") || block.includes("serve(") ? "serves" : "runs"}`
  const needsDatabase = block.includes("DATABASE_URL")
  test(title, { skip: needsDatabase && database === undefined && "no PostgreSQL" }, async () => {
    const env: NodeJS.ProcessEnv = { ...process.env, HAPAX_SERVER: server.url, DATABASE_URL: database }
    const file = join(FOLDER, `block-${at}.js`)
    if (!title.endsWith("serves")) {
      const run = spawnSync(process.execPath, [file], { env, encoding: "utf8", timeout: PATIENCE_MS })
      assert.equal(run.status, 0, run.stderr)
      return
    }
    const port = await freePort()
    const child = spawn(process.execPath, [file], { env: { ...env, PORT: String(port) }, stdio: ["ignore", "ignore", "inherit"] })
    try {
      const url = `http://localhost:${port}/orders`
      const key = unique("docs")
      const send = () => fetch(url, { method: "POST", headers: { "idempotency-key": key, "content-type": "application/json" }, body: '{"item":"tea"}' })
      await until("the service listens", () => send().then((response) => response.arrayBuffer(), () => undefined).then((bytes) => bytes !== undefined))
      const [first, again] = [await send(), await send()]
      assert.deepEqual([first.status, again.status], [201, 201])
      assert.equal(again.headers.get("idempotent-replayed"), "true")
      assert.equal(await again.text(), await first.text())
    } finally {
      child.kill("SIGKILL")
    }
  })
})
