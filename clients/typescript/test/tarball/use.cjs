// Uses the installed package from CommonJS.
const assert = require("node:assert/strict")
const { StoreUnavailable, connect } = require("hapax-client")

assert.equal(typeof connect({ url: "http://127.0.0.1:8787" }).once, "function")
const away = connect({ url: "http://127.0.0.1:9", fetch: () => Promise.reject(new TypeError("fetch failed")), retryForMs: 0 })
assert.rejects(away.lock("a"), StoreUnavailable).catch((error) => {
  console.error(error)
  process.exitCode = 1
})
for (const name of ["express", "fastify", "hono"]) assert.equal(typeof require(`hapax-client/${name}`).idempotency, "function")
assert.equal(typeof require("hapax-client/pg").once, "function")
assert.equal(typeof require("hapax-client/browser").Intent, "function")
