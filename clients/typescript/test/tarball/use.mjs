// Uses the installed package from ESM.
import assert from "node:assert/strict"
import { StoreUnavailable, connect } from "hapax-client"

assert.equal(typeof connect({ url: "http://127.0.0.1:8787" }).once, "function")
await assert.rejects(connect({ url: "http://127.0.0.1:9", fetch: () => Promise.reject(new TypeError("fetch failed")), retryForMs: 0 }).lock("a"), StoreUnavailable)
