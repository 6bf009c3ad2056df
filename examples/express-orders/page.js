/** The page with the form. */
export const page = `<!doctype html>
<html lang="en">
  <title>Orders</title>
  <h1>Order tea</h1>
  <form id="order" action="/orders" method="post">
    <input name="item" value="tea" required />
    <input name="cups" type="number" value="2" min="1" max="100" />
    <button>Order</button>
  </form>
  <p><output></output></p>
  <script type="module">
    import { bindForm } from "/hapax.js"

    const output = document.querySelector("output")
    // One key until there is an answer: press twice, reload in the middle, lose the connection: one order.
    bindForm(document.querySelector("#order"), {
      onAnswer: async (response) => {
        const answer = await response.json()
        output.value = response.ok ? \`order \${answer.id}\` : (answer.error ?? answer.title)
      },
      onError: () => (output.value = "no connection; press again, it counts once"),
    })
  </script>
</html>`
