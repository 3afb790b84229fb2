//! The names of source files, for languages that prescribe them.
//!
//! Both rules scan the source without a full parse: they skip strings and comments, and see the rest as words and
//! brackets. The compiler reports a wrong guess.

/// The file name of a Java source, and the class to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct JavaNames {
    /// The file's name without `.java`: the public class, else the class to start.
    pub(super) file: String,
    /// The class to start, with its package.
    pub(super) class: String,
}

/// Returns the names in a Java source; `Main` if it has none.
pub(super) fn java(source: &str) -> JavaNames {
    let words = java_words(source);
    let word = |index: usize| words.get(index).map(String::as_str).unwrap_or_default();
    let mut package = String::new();
    let mut depth = 0_usize;
    let (mut public, mut started, mut first) = (None, None, None);
    let mut current: Option<String> = None;
    let mut is_public = false;
    for index in 0..words.len() {
        match word(index) {
            "{" => depth += 1,
            "}" => {
                depth = depth.saturating_sub(1);
                is_public &= depth > 0;
            }
            ";" if depth == 0 => is_public = false,
            "package" if depth == 0 && current.is_none() => {
                package = words
                    .iter()
                    .skip(index + 1)
                    .take_while(|word| *word != ";")
                    .cloned()
                    .collect();
            }
            "public" if depth == 0 => is_public = true,
            "class" | "interface" | "enum" | "record" if depth == 0 && is_name(word(index + 1)) => {
                let name = word(index + 1).to_owned();
                if is_public {
                    public.get_or_insert_with(|| name.clone());
                }
                first.get_or_insert_with(|| name.clone());
                current = Some(name);
            }
            // The public class' `main` is preferred over an earlier one.
            "main"
                if depth == 1
                    && word(index + 1) == "("
                    && word(index.wrapping_sub(1)) == "void"
                    && (started.is_none() || current == public) =>
            {
                started.clone_from(&current);
            }
            _ => {}
        }
    }
    let class = started
        .or_else(|| public.clone())
        .or(first)
        .unwrap_or_else(|| "Main".to_owned());
    JavaNames {
        file: public.unwrap_or_else(|| class.clone()),
        class: if package.is_empty() {
            class
        } else {
            format!("{package}.{class}")
        },
    }
}

fn is_name(word: &str) -> bool {
    word.chars()
        .next()
        .is_some_and(|c| c.is_alphabetic() || c == '_' || c == '$')
}

/// Returns the words, brackets and dots of a Java source, without comments and strings.
fn java_words(source: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut rest = source.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '/' if rest.peek() == Some(&'/') => while rest.next().is_some_and(|c| c != '\n') {},
            '/' if rest.peek() == Some(&'*') => {
                rest.next();
                let mut last = ' ';
                for c in rest.by_ref() {
                    if last == '*' && c == '/' {
                        break;
                    }
                    last = c;
                }
            }
            '"' | '\'' => skip_string(c, &mut rest),
            c if c.is_alphanumeric() || c == '_' || c == '$' => {
                let mut word = String::from(c);
                while let Some(c) = rest.next_if(|c| c.is_alphanumeric() || *c == '_' || *c == '$') {
                    word.push(c);
                }
                words.push(word);
            }
            '{' | '}' | '(' | ';' | '.' => words.push(c.to_string()),
            _ => {}
        }
    }
    words
}

/// Skips a string or a text block of three quotes.
fn skip_string(quote: char, rest: &mut std::iter::Peekable<std::str::Chars<'_>>) {
    let mut block = false;
    if quote == '"' && rest.next_if_eq(&'"').is_some() {
        if rest.next_if_eq(&'"').is_none() {
            return;
        }
        block = true;
    }
    let mut quotes = 0;
    while let Some(c) = rest.next() {
        match c {
            '\\' => {
                rest.next();
                quotes = 0;
            }
            c if c == quote && !block => return,
            c if c == quote => {
                quotes += 1;
                if quotes == 3 {
                    return;
                }
            }
            '\n' if !block => return,
            _ => quotes = 0,
        }
    }
}

/// Returns true if a JavaScript or TypeScript source is a module: it imports, exports or awaits at its top level, and
/// does not call `require`, which modules lack.
pub(super) fn is_module(source: &str) -> bool {
    let begins = |line: &str| {
        let line = line.strip_prefix('\u{feff}').unwrap_or(line);
        let word = |word: &str, next: &[char]| line.strip_prefix(word).is_some_and(|rest| rest.starts_with(next));
        word("import", &[' ', '{', '*', '"', '\'']) || word("export", &[' ', '{', '*']) || is_top_await(line)
    };
    let module = source.lines().any(begins);
    let imports = || {
        source
            .lines()
            .any(|line| line.starts_with("import ") || line.starts_with("export "))
    };
    module && (imports() || !source.contains("require("))
}

/// Returns true for an `await` in an unindented line, outside of a function on that line.
fn is_top_await(line: &str) -> bool {
    if line.starts_with([' ', '\t', '/', '*']) || line.contains("async") || line.contains("=>") {
        return false;
    }
    line.starts_with("await ") || line.contains("= await ") || line.contains("(await ") || line.starts_with("for await")
}

/// Returns true if the source calls `require`, as CommonJS modules do.
pub(super) fn requires(source: &str) -> bool {
    source.contains("require(") || source.contains("module.exports")
}

/// Returns true for TypeScript with `import x = require(…)` or `export = x`, which are valid only in CommonJS modules.
pub(super) fn assigns_modules(source: &str) -> bool {
    source.lines().any(|line| {
        let imported = line.strip_prefix("import ").and_then(|rest| rest.split_once('='));
        let exported = line.strip_prefix("export ").map(str::trim_start);
        imported.is_some_and(|(name, from)| is_name(name.trim()) && from.trim_start().starts_with("require("))
            || exported.is_some_and(|rest| rest.starts_with("= ") || rest.starts_with("={"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assignments_identify_commonjs_in_typescript() {
        for (source, common) in [
            ("import fs = require(\"node:fs\");", true),
            ("const a = 1;\nexport = a;", true),
            ("export = { a: 1 };", true),
            ("import fs from 'fs'", false),
            ("import { a as b } from 'x'", false),
            ("export const a = 1", false),
            ("import N = Some.Space;", false),
            ("// import fs = require('fs')", false),
        ] {
            assert_eq!(assigns_modules(source), common, "{source}");
        }
    }

    fn names(source: &str) -> (String, String) {
        let found = java(source);
        (found.file, found.class)
    }

    #[test]
    fn a_java_file_is_called_after_its_public_class() {
        for (source, file, class) in [
            (
                "public class Foo { public static void main(String[] a) {} }",
                "Foo",
                "Foo",
            ),
            ("public final class Foo {}", "Foo", "Foo"),
            (
                "class A {} public record P(int x) { public static void main(String[] a){} }",
                "P",
                "P",
            ),
            ("class A {} class B { static void main(String... a) {} }", "B", "B"),
            (
                "// public class No\n/* public class No2 */ class Yes { String s = \"public class X {\"; }",
                "Yes",
                "Yes",
            ),
            (
                "package a.b;\npublic enum E { X; public static void main(String[] a) {} }",
                "E",
                "a.b.E",
            ),
            ("class A { class B { void main() {} } } public interface C {}", "C", "C"),
            (
                "class T { String s = \"\"\"\n  public class \"X\" {\n\"\"\"; static void main(String[] a){} }",
                "T",
                "T",
            ),
            (
                "class A { static void main(String[] a){} } public class B { public static void main(String[] a){} }",
                "B",
                "B",
            ),
            ("int x = 1;", "Main", "Main"),
            ("class Q { char c = '\"'; static void main(String[] a){} }", "Q", "Q"),
        ] {
            assert_eq!(names(source), (file.to_owned(), class.to_owned()), "{source}");
        }
    }

    #[test]
    fn the_two_module_kinds_are_distinguished() {
        for (source, module) in [
            ("import fs from 'fs'\nfs.x()", true),
            ("export const a = 1", true),
            ("const x = await fetch(1)", true),
            ("const fs = require('fs')", false),
            ("const fs = require('fs')\nasync function f() {\n  await g()\n}", false),
            ("console.log(1)", false),
            (
                "import { createRequire } from 'module'; const require = createRequire(1)",
                true,
            ),
            ("const f = async () => await g()", false),
            ("imported = 1", false),
        ] {
            assert_eq!(is_module(source), module, "{source}");
        }
    }
}
