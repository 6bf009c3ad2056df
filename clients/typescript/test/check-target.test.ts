/** examples/check-targets/express.mjs: `hapax check` finds it broken alone, and right behind `hapax proxy`. */
import assert from "node:assert/strict"
import { execFile } from "node:child_process"
import { copyFileSync } from "node:fs"
import { join, resolve } from "node:path"
import { test } from "node:test"
import { BINARY, startListening } from "./support.js"

const ROOT = process.env["HAPAX_TEST_ROOT"] ?? "../../.."

interface Report {
  fails: { name: string }[]
  skipped: { name: string }[]
}

/** The exit code and the report. What the service writes has to be read meanwhile, or it stands still. */
function check(url: string, ...flags: string[]): Promise<[code: number | null, report: Report]> {
  return new Promise((resolve, reject) => {
    const child = execFile(BINARY, ["check", url, "--json", ...flags], (_error, stdout, stderr) => {
      if (stdout === "") reject(new Error(stderr))
      else resolve([child.exitCode, JSON.parse(stdout) as Report])
    })
  })
}

test("hapax check finds no fault in the Express target behind the proxy", async () => {
  // Beside `node_modules`, where it finds Express.
  copyFileSync(join(ROOT, "examples/check-targets/express.mjs"), "check-target.mjs")
  const target = await startListening(process.execPath, [resolve("check-target.mjs")], { PORT: "0" })
  try {
    const [code, { fails }] = await check(target.url, "--only", "replay")
    assert.deepEqual([code, fails.map(({ name }) => name)], [1, ["replay"]])
    const proxy = await startListening(BINARY, ["proxy", "--listen", "127.0.0.1:0", "--upstream", target.url, "--store", "memory:"])
    try {
      const [code, report] = await check(proxy.url, "--strict")
      assert.equal(code, 0, JSON.stringify(report.fails))
      assert.deepEqual(report.skipped.map(({ name }) => name), ["crash-keeps-answers", "crash-in-the-middle", "retention"])
    } finally {
      await proxy.stop()
    }
  } finally {
    await target.stop()
  }
})
