//! Prompts that a person can pick in a client: the beginnings of the two things that sandboxes are used for most.

/// Returns the value of an argument, if it was given.
pub(crate) type ArgumentLookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// A value that a prompt takes.
#[derive(Debug)]
pub(crate) struct Argument {
    pub(crate) name: &'static str,
    pub(crate) description: &'static str,
    pub(crate) required: bool,
}

/// A prompt.
#[derive(Debug)]
pub(crate) struct Prompt {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    pub(crate) description: &'static str,
    pub(crate) arguments: &'static [Argument],
    write: fn(ArgumentLookup<'_>) -> String,
}

/// All prompts, in the order of `prompts/list`.
pub(crate) const SANDBOX_PROMPTS: &[Prompt] = &[
    Prompt {
        name: "analyze_data",
        title: "Analyze a data file",
        description: "Looks at a file of the sandbox, answers a question about it, and draws useful plots",
        arguments: &[
            Argument {
                name: "path",
                description: "The file, in the sandbox or a mounted folder",
                required: true,
            },
            Argument {
                name: "question",
                description: "The question; default: what is worth knowing",
                required: false,
            },
        ],
        write: analyze,
    },
    Prompt {
        name: "fix_code",
        title: "Find out why code fails",
        description: "Reproduces a bug in the sandbox, fixes it, and proves the fix with a test",
        arguments: &[
            Argument {
                name: "code",
                description: "The code",
                required: true,
            },
            Argument {
                name: "problem",
                description: "What goes wrong, or what it should do",
                required: false,
            },
        ],
        write: fix,
    },
];

impl Prompt {
    /// Returns the text with these values, or an error that names the missing argument.
    pub(crate) fn text(&self, given: ArgumentLookup<'_>) -> Result<String, &'static str> {
        let missing = self
            .arguments
            .iter()
            .find(|argument| argument.required && given(argument.name).is_none_or(|value| value.trim().is_empty()));
        match missing {
            Some(argument) => Err(argument.name),
            None => Ok((self.write)(given)),
        }
    }
}

fn analyze(given: ArgumentLookup<'_>) -> String {
    let path = given("path").unwrap_or_default();
    let question = given("question").unwrap_or_else(|| "What is in it, and what is worth knowing?".to_owned());
    format!(
        "Analyze the file {path} with execute_code, and answer: {question}\n\n\
         Work in steps, and look at each result before the next one; variables stay between calls. First load the file \
         and look at its size, columns, types, gaps and a few rows; do not print all of it. Then compute what the \
         question needs, and check a surprising number by a second way. Draw a plot where it says more than a table. \
         End with the answer, the numbers that carry it, and what the data cannot tell."
    )
}

fn fix(given: ArgumentLookup<'_>) -> String {
    let code = given("code").unwrap_or_default();
    let problem = given("problem").unwrap_or_else(|| "It does not do what it should.".to_owned());
    format!(
        "Find out why this code fails, and mend it.\n\nThe problem: {problem}\n\n```\n{code}\n```\n\n\
         First reproduce the fault with execute_code: the smallest input that shows it. Say what causes it before you \
         change anything. Then mend the cause, run the input again, and run the cases beside it that could break. End \
         with the mended code and the test that failed before."
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_prompt_contains_its_arguments_and_names_a_missing_one() {
        for prompt in SANDBOX_PROMPTS {
            let given = |name: &str| Some(format!("<{name}>"));
            let text = prompt.text(&given).unwrap();
            for argument in prompt.arguments {
                assert!(text.contains(&format!("<{}>", argument.name)), "{text}");
            }
            assert_eq!(prompt.text(&|_| None), Err(prompt.arguments[0].name));
            assert_eq!(prompt.text(&|_| Some(" ".into())), Err(prompt.arguments[0].name));
        }
    }
}
