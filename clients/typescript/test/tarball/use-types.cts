// The types of the installed package, from CommonJS.
import hapax = require("hapax-client")

const client: hapax.Client = hapax.connect()
export const version: Promise<string> = client.record<number>("a").put(1)
