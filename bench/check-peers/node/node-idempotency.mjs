// The routes behind @node-idempotency/core with its Redis adapter. The front does what the package's NestJS interceptor
// does: path and method as they come, the package's own map of errors to statuses, Retry-After with a 409.
import { Idempotency, IdempotencyError } from "@node-idempotency/core";
import { idempotency2HttpCodeMap } from "@node-idempotency/shared";
import { RedisStorageAdapter } from "@node-idempotency/storage-adapter-redis";
import express from "express";
import { answerOf, listen, ORDERS } from "./routes.mjs";

const storage = new RedisStorageAdapter({ url: process.env.STORE });
await storage.connect();
const idempotency = new Idempotency(storage);
const app = express();

const send = (response, { status, headers, body }) =>
  response.status(status).set(headers).send(Buffer.from(body, "base64"));

app.post(ORDERS, express.json(), async (request, response) => {
  const { headers, body, url: path, method } = request;
  const asked = { headers, body, path, method };
  try {
    const kept = await idempotency.onRequest(asked);
    if (kept) return send(response.set("Idempotent-Replayed", "true"), kept.body);
  } catch (error) {
    if (!(error instanceof IdempotencyError)) throw error;
    const status = idempotency2HttpCodeMap[error.code] ?? 500;
    if (status === 409) response.set("Retry-After", "1");
    return response.status(status).json({ statusCode: status, message: error.message });
  }
  const answer = await answerOf(request.body);
  const kept = { ...answer, body: answer.body.toString("base64") };
  await idempotency.onResponse(asked, { body: kept });
  send(response, kept);
});

listen(app);
