// Builds dist/: ESM, CommonJS, and the browser helper as one minified file.
import { execFileSync } from "node:child_process"
import { mkdir, rm, writeFile } from "node:fs/promises"
import { build } from "esbuild"

await rm("dist", { recursive: true, force: true })
for (const project of ["tsconfig.esm.json", "tsconfig.cjs.json"]) {
  execFileSync(process.execPath, ["node_modules/typescript/bin/tsc", "-p", project], { stdio: "inherit" })
}
await mkdir("dist/cjs", { recursive: true })
await writeFile("dist/cjs/package.json", '{ "type": "commonjs" }\n')
await build({
  entryPoints: ["src/browser.ts"],
  outfile: "dist/browser.min.js",
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2020",
})
