/** A process that calls `once` several times: URL KEY FILE CALLS [hang]. Each run adds a line to FILE. */
import { appendFileSync } from "node:fs"
import { connect } from "../src/index.js"

const [url, key = "", file = "", calls, hang] = process.argv.slice(2)
const client = connect({ url })
const call = () =>
  client.once(
    "CreateOrder",
    key,
    async () => {
      appendFileSync(file, "ran\n")
      if (hang !== undefined) await new Promise((resolve) => setTimeout(resolve, 600_000))
      return process.pid
    },
    { waitMs: 60_000, ...(hang === undefined ? {} : { leaseMs: 500 }) },
  )
const values = await Promise.all(Array.from({ length: Number(calls) }, call))
if (new Set(values.map(({ value }) => value)).size !== 1) process.exitCode = 1
process.disconnect?.()
