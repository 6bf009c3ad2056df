// The types of the installed package, from ESM.
import { connect } from "hapax-client"

const client = connect({ url: "http://127.0.0.1:8787" })
const { value }: { value: number } = await client.once("CreateOrder", "key-1", () => 17)
await using lock = await client.lock("nightly")
const fence: number = lock.fence
export { fence, value }
