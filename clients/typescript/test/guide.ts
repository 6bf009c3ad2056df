/** The blocks of the guide. */
import { readFileSync } from "node:fs"
import { join } from "node:path"

const ROOT = process.env["HAPAX_TEST_ROOT"] ?? "../../.."

/** All blocks of a language in the guide and the package's README. */
export function readGuide(language: string): string[] {
  const pages = ["docs/typescript.md", "clients/typescript/README.md"].map((page) => readFileSync(join(ROOT, page), "utf8"))
  const pattern = new RegExp(`^\`\`\`${language}\\n([\\s\\S]*?)^\`\`\``, "gm")
  return pages.flatMap((page) => [...page.matchAll(pattern)].map((match) => match[1] ?? ""))
}
