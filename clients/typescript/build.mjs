// Builds dist/: ESM and CommonJS.
import { execFileSync } from "node:child_process"
import { mkdir, rm, writeFile } from "node:fs/promises"

await rm("dist", { recursive: true, force: true })
for (const project of ["tsconfig.esm.json", "tsconfig.cjs.json"]) {
  execFileSync(process.execPath, ["node_modules/typescript/bin/tsc", "-p", project], { stdio: "inherit" })
}
await mkdir("dist/cjs", { recursive: true })
await writeFile("dist/cjs/package.json", '{ "type": "commonjs" }\n')
