// Syntax patterns: for every language a list of [class, pattern], tried in order at each position.
// No pattern fails after reading far: unclosed strings and comments extend to the end of their line
// or of the text, so that no position is read twice.

const words = (text) => `(?<![\\w$])(?:${text.trim().split(/\s+/).join("|")})(?![\\w$])`;
const NUMBER =
  "(?<![\\w$])(?:0[xX][\\da-fA-F_]+|\\d[\\d_]*(?:\\.[\\d_]+)?(?:[eE][+-]?\\d+)?)\\w{0,8}";
const DOUBLE = '"[^"\\\\\\n]*(?:\\\\[^][^"\\\\\\n]*)*"?';
const SINGLE = "'[^'\\\\\\n]*(?:\\\\[^][^'\\\\\\n]*)*'?";
const LONG_STRING = `"""[^]*?(?:"""|$(?![^]))|'''[^]*?(?:'''|$(?![^]))`;
const TICKS = "`[^`\\\\]*(?:\\\\[^][^`\\\\]*)*`?";
const BLOCK_COMMENT = "\\/\\*[^]*?(?:\\*\\/|$(?![^]))";
const CALL = "(?<![\\w$])[A-Za-z_$][\\w$]{0,80}(?=\\()";
const TYPE = "(?<![\\w$])[A-Z][A-Za-z0-9]*[a-z][\\w$]*";
const NAME = "[A-Za-z_$][\\w$]*";
const MARKS = "[{}()[\\];,.:=<>+\\-*\\/%&|^!~?@]+?";

const C_LIKE = (keywords, types, extra = []) => [
  ["comment", `\\/\\/[^\\n]*|${BLOCK_COMMENT}`],
  ...extra,
  ["string", `${DOUBLE}|${SINGLE}`],
  ["keyword", words(keywords)],
  ["type", types ? `${words(types)}|${TYPE}` : TYPE],
  ["number", NUMBER],
  ["function", CALL],
  ["", NAME],
  ["mark", MARKS],
];

const REGEXP =
  "\\/(?![*\\/])(?:[^\\/\\\\\\n[]|\\\\.|\\[[^\\]\\n]{0,100}\\]){1,300}\\/[a-z]{0,8}";

const JAVASCRIPT = C_LIKE(
  `async await break case catch class const continue debugger default delete do else export extends
   finally for from function get if import in instanceof let new of return set static super switch
   this throw try typeof var void while with yield null undefined true false as enum implements
   interface namespace private protected public readonly type declare abstract satisfies keyof`,
  "string number boolean any unknown never object bigint symbol",
  [
    ["string", TICKS],
    // After a value a slash divides; elsewhere it starts a regular expression, on one line.
    ["regexp", `(?<=[=(,:;!&|?{}\\[\\n]\\s{0,20}|return\\s{1,5}|^)${REGEXP}`],
  ],
);

const PYTHON = [
  ["comment", "#[^\\n]*"],
  ["string", `(?<![\\w])[rRbBfFuUtT]{0,2}(?:${LONG_STRING}|${DOUBLE}|${SINGLE})`],
  ["meta", "(?<=^|\\n)[ \\t]{0,60}@[\\w.]+"],
  ["keyword", words(`and as assert async await break case class continue def del elif else except
    False finally for from global if import in is lambda match None nonlocal not or pass raise
    return
    True try type while with yield self cls`)],
  ["type", `${words("int str float bool bytes list dict set tuple object type complex")}|${TYPE}`],
  ["number", NUMBER],
  ["function", CALL],
  ["", NAME],
  ["mark", MARKS],
];

const SHELL = [
  ["comment", "(?<=^|[\\s;])#[^\\n]*"],
  ["string", `"[^"\\\\]*(?:\\\\[^][^"\\\\]*)*"?|'[^']*'?`],
  ["variable", "\\$(?:\\{[^}\\n]{0,200}\\}?|\\w+|[?#@*!$-])"],
  ["keyword", words(`if then else elif fi for in do done while until case esac function return local
    export readonly declare unset set source alias exit break continue shift trap eval exec`)],
  ["meta", "(?<=\\s)--?[A-Za-z][\\w-]*"],
  ["function", "(?<=^|\\n|[|;&(]\\s{0,8}|&&\\s{0,8})[\\w./-]+"],
  ["number", "(?<![\\w./-])\\d+(?![\\w./-])"],
  ["", "[\\w./-]+"],
  ["mark", "[|&;<>(){}=[\\]]+?"],
];

const JSON_RULES = [
  ["key", `${DOUBLE}(?=\\s{0,20}:)`],
  ["string", DOUBLE],
  ["keyword", words("true false null")],
  ["number", "-?\\d+(?:\\.\\d+)?(?:[eE][+-]?\\d+)?"],
  ["comment", `\\/\\/[^\\n]*|${BLOCK_COMMENT}`],
  ["mark", "[{}[\\],:]"],
];

const MARKUP = [
  ["comment", "<!--[^]*?(?:-->|$(?![^]))"],
  ["meta", "<[!?][^>]*>?"],
  ["tag", "<\\/?[A-Za-z][\\w:.-]*|\\/?>"],
  ["attribute", "(?<=\\s)[A-Za-z_:@][\\w:.-]*(?=\\s{0,8}=)"],
  ["string", "(?<==\\s{0,8})(?:\"[^\"]*\"?|'[^']*'?)"],
  ["number", "&(?:#\\w{1,8}|\\w{1,32});"],
  ["", "[\\w-]+"],
];

const CSS = [
  ["comment", BLOCK_COMMENT],
  ["string", `${DOUBLE}|${SINGLE}`],
  ["meta", "@[\\w-]+"],
  ["key", "(?<=[{;\\s])(?:--)?[a-z][\\w-]*(?=\\s{0,8}:(?!:))"],
  ["number", "#[\\da-fA-F]{3,8}(?![\\w-])|(?<![\\w-])-?\\d*\\.?\\d+(?:%|[a-z]{1,5})?"],
  ["type", "[.#][A-Za-z_-][\\w-]*"],
  ["function", "[a-z-]+(?=\\()"],
  ["", "[\\w-]+"],
  ["mark", "[{}:;,()>+~*=[\\]]"],
];

const SQL = [
  ["comment", `--[^\\n]*|${BLOCK_COMMENT}`],
  ["string", "'[^']*'?"],
  ["key", '"[^"\\n]*"?'],
  ["keyword", words(`select from where and or not in is null like between join inner left right full
    outer cross on using group by having order asc desc limit offset insert into values update set
    delete create table index view drop alter add column primary key foreign references unique check
    default constraint with as distinct union all exists case when then else end begin commit
    rollback
    transaction returning true false cast if recursive explain analyze`)],
  ["type", words(`int integer bigint smallint text varchar char boolean date timestamp timestamptz
    numeric decimal real float serial uuid json jsonb blob`)],
  ["number", NUMBER],
  ["function", CALL],
  ["", NAME],
  ["mark", MARKS],
];

const YAML = [
  ["comment", "(?<=^|\\s)#[^\\n]*"],
  ["key", "(?<=^|\\n|[\\s{,-])[\\w./-][\\w ./-]{0,80}(?=:(?:\\s|$))"],
  ["string", `${DOUBLE}|'[^'\\n]*'?`],
  ["meta", "(?<=^|\\n)(?:---|\\.\\.\\.)(?=\\s|$)|(?<=\\s)[&*!][\\w!-]+"],
  ["keyword", "(?<=[:\\s[,]\\s{0,4})(?:true|false|null|yes|no|on|off|~)(?=[\\s,\\]}]|$)"],
  ["number", "(?<=[:\\s[,-]\\s{0,4})-?\\d+(?:\\.\\d+)?(?=[\\s,\\]}]|$)"],
  ["", "[\\w./]+"],
  ["mark", "[-:{}[\\],|>]"],
];

const TOML = [
  ["comment", "#[^\\n]*"],
  ["string", `${LONG_STRING}|${DOUBLE}|'[^'\\n]*'?`],
  ["tag", "(?<=^|\\n)[ \\t]{0,20}\\[\\[?[^\\]\\n]{0,200}\\]?\\]?"],
  ["key", "(?<=^|\\n|[{,]\\s{0,8})[ \\t]{0,20}[\\w.-]+(?=\\s{0,20}=)"],
  ["keyword", words("true false inf nan")],
  ["number", "(?<![\\w-])[+-]?\\d[\\d_:.TZ+-]*(?:[eE][+-]?\\d+)?"],
  ["", "[\\w-]+"],
  ["mark", "[{}[\\],=.]"],
];

const DIFF = [
  ["meta", "(?<=^|\\n)(?:diff |index |--- |\\+\\+\\+ |@@)[^\\n]*"],
  ["added", "(?<=^|\\n)\\+[^\\n]*"],
  ["removed", "(?<=^|\\n)-[^\\n]*"],
  ["", "(?<=^|\\n)[^\\n]+"],
];

const MARKDOWN = [
  ["keyword", "(?<=^|\\n)#{1,6}[ \\t][^\\n]*"],
  ["string", "(?<=^|\\n)[ \\t]{0,3}(?:`{3,}|~{3,})[^\\n]*|`[^`\\n]*`?"],
  ["comment", "(?<=^|\\n)>[^\\n]*"],
  ["mark", "(?<=^|\\n)[ \\t]{0,20}(?:[-*+]|\\d{1,9}[.)])(?=[ \\t])"],
  ["type", "\\*\\*[^*\\n]{1,300}\\*\\*|__[^_\\n]{1,300}__"],
  ["function", "!?\\[[^\\]\\n]{0,300}\\]\\([^)\\n]{0,500}\\)"],
  ["", "\\w+"],
];

const RUST = C_LIKE(
  `as async await break const continue crate dyn else enum extern false fn for if impl in let loop
   match mod move mut pub ref return self Self static struct super trait true type unsafe use where
   while`,
  "i8 i16 i32 i64 i128 isize u8 u16 u32 u64 u128 usize f32 f64 bool char str",
  [
    ["string", '(?<![\\w])b?r"[^"]*"?|(?<![\\w])b?r#"[^]*?(?:"#|$(?![^]))'],
    ["meta", "#!?\\[[^\\]\\n]{0,300}\\]?|(?<![\\w'])'[a-z_]\\w{0,40}(?!')"],
    ["function", "(?<![\\w])[a-z_]\\w{0,80}!"],
  ],
);
const GO = C_LIKE(
  `break case chan const continue default defer else fallthrough for func go goto if import
   interface
   map package range return select struct switch type var nil true false iota`,
  `bool byte complex64 complex128 error float32 float64 int int8 int16 int32 int64 rune string uint
   uint8 uint16 uint32 uint64 uintptr any`,
  [["string", "`[^`]*`?"]],
);

const C = C_LIKE(
  `alignas auto break case catch class const constexpr continue default delete do else enum explicit
   export extern final for friend goto if inline mutable namespace new noexcept nullptr operator
   override private protected public register return sizeof static static_cast struct switch
   template
   this throw try typedef typename union using virtual volatile while true false concept requires
   co_await co_return co_yield NULL`,
  `bool char double float int long short signed unsigned void size_t ssize_t int8_t int16_t int32_t
   int64_t uint8_t uint16_t uint32_t uint64_t wchar_t`,
  [["meta", "(?<=^|\\n)[ \\t]{0,20}#[ \\t]{0,8}\\w+"]],
);

const JAVA = C_LIKE(
  `abstract assert break case catch class const continue default do else enum extends final finally
   for goto if implements import instanceof interface native new package private protected public
   record return sealed static strictfp super switch synchronized this throw throws transient try
   var
   void volatile while yield true false null fun val when object companion override suspend`,
  "boolean byte char double float int long short",
  [["meta", "@\\w+"], ["string", '"""[^]*?(?:"""|$(?![^]))']],
);

const NAMES = {
  python: [PYTHON, "py python3 pyi py3 gyp"],
  javascript: [JAVASCRIPT, "js jsx ts tsx typescript mjs cjs node"],
  json: [JSON_RULES, "jsonc json5 jsonl ndjson"],
  shell: [SHELL, "sh bash zsh console shellsession shell-session fish dockerfile makefile"],
  rust: [RUST, "rs"],
  go: [GO, "golang"],
  c: [C, "cpp c++ h hpp cc cxx objc cs csharp c#"],
  java: [JAVA, "kotlin kt scala groovy swift dart"],
  html: [MARKUP, "xml svg xhtml vue plist"],
  css: [CSS, "scss less sass"],
  sql: [SQL, "postgres postgresql mysql sqlite psql"],
  yaml: [YAML, "yml"],
  toml: [TOML, "ini cfg conf properties"],
  diff: [DIFF, "patch udiff"],
  markdown: [MARKDOWN, "md mdx"],
};

const rules = new Map();
for (const [name, [list, others]] of Object.entries(NAMES)) {
  for (const alias of [name, ...others.split(" ")]) rules.set(alias, { name, list, pattern: null });
}

/** Returns the classes in order and one pattern with a group for each of them, or null. */
export function rulesOf(language) {
  const found = rules.get(language.toLowerCase());
  if (found === undefined) return null;
  found.pattern ??= new RegExp(
    found.list.map(([, source]) => `(${source})`).join("|"),
    found.name === "sql" ? "iy" : "y",
  );
  found.classes ??= found.list.map(([name]) => name);
  return found;
}

/** Returns the language of a file by its name's ending. */
export function languageOfPath(path) {
  const name = path.toLowerCase().split(/[\\/]/).at(-1);
  const end = name.includes(".") ? name.slice(name.lastIndexOf(".") + 1) : name;
  return rules.has(end) ? end : "";
}
