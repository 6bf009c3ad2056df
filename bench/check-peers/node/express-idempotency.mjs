// The routes behind express-idempotency with its default store, as its README has it.
import express from "express";
import { getSharedIdempotencyService, idempotency } from "express-idempotency";
import { answerOf, listen, ORDERS } from "./routes.mjs";

const app = express();

app.post(ORDERS, express.json(), idempotency(), async (request, response) => {
  if (getSharedIdempotencyService().isHit(request)) return;
  const { status, headers, body } = await answerOf(request.body);
  // Text is sent as text, so that its store keeps it as it keeps what most services send.
  const text = headers["content-type"].startsWith("text/");
  response.status(status).set(headers).send(text ? body.toString() : body);
});

listen(app);
