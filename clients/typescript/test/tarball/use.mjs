// Uses the installed package from ESM.
import assert from "node:assert/strict"
import { existsSync } from "node:fs"
import { fileURLToPath } from "node:url"
import { Intent } from "hapax-client/browser"
import { StoreUnavailable, connect } from "hapax-client"
import * as express from "hapax-client/express"
import * as fastify from "hapax-client/fastify"
import * as hono from "hapax-client/hono"
import { once } from "hapax-client/pg"

assert.equal(typeof connect({ url: "http://127.0.0.1:8787" }).once, "function")
await assert.rejects(connect({ url: "http://127.0.0.1:9", fetch: () => Promise.reject(new TypeError("fetch failed")), retryForMs: 0 }).lock("a"), StoreUnavailable)
for (const { idempotency } of [express, fastify, hono]) assert.equal(typeof idempotency, "function")
assert.equal(typeof once, "function")
assert.equal(typeof Intent, "function")
assert.ok(existsSync(fileURLToPath(new URL("./node_modules/hapax-client/dist/browser.min.js", import.meta.url))))
