// The two routes that `hapax check` asks of a service, for Express: npm install express; node express.mjs
import express from "express";
import { setTimeout as sleep } from "node:timers/promises";

const app = express();
let executions = 0;

// Put your own idempotency middleware here.

app.post(["/orders", "/orders/other-path"], express.json(), async (request, response) => {
  const { status = 201, delay_ms = 0, size = 16, binary = false, stream = false } = request.body ?? {};
  response.status(status).set("x-run", String(executions++));
  await sleep(delay_ms);
  const bytes = Buffer.alloc(size, binary ? 0xff : "x");
  response.type(binary ? "application/octet-stream" : "text/plain");
  if (!stream) return response.send(bytes);
  for (let at = 0; at < size; at += 256) {
    response.write(bytes.subarray(at, at + 256));
    await sleep(5);
  }
  response.end();
});

app.get("/executions", (_request, response) => response.json({ executions }));

const listener = app.listen(Number(process.env.PORT ?? 8080), "127.0.0.1");
listener.on("listening", () => console.log(`listening on http://127.0.0.1:${listener.address().port}`));
