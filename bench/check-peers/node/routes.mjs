// The routes of `hapax check` for Express: the answer that an order asks for, and the count of executions.
import { setTimeout as sleep } from "node:timers/promises";

let executions = 0;

export async function answerOf(order) {
  const { status = 201, delay_ms = 0, size = 16, binary = false } = order ?? {};
  const run = String(executions++);
  await sleep(delay_ms);
  const body = Buffer.alloc(size, binary ? 0xff : "x");
  const type = binary ? "application/octet-stream" : "text/plain; charset=utf-8";
  return { status, headers: { "x-run": run, "content-type": type }, body };
}

export const ORDERS = ["/orders", "/orders/other-path"];

export function listen(app) {
  app.get("/executions", (_request, response) => response.json({ executions }));
  const [host, port] = process.env.LISTEN.split(":");
  app.listen(Number(port), host);
}
