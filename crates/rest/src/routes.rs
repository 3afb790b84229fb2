//! The list of all resources: each with its address, its request and answers, and the function that answers.

use futures::FutureExt as _;
use futures::future::BoxFuture;
use hyper::{Method, Response};
use sandcell_mcp::{EndpointBody, EndpointInput, NotFound};
use schemars::{Schema, SchemaGenerator};

use crate::problem::Problem;
use crate::request::{Call, QueryField, QueryKind};
use crate::{approvals, checkpoints, commands, commits, executions, files, fusion, model, ports, run, sandboxes};

type AnswerFuture<'a> = BoxFuture<'a, Result<Response<EndpointBody>, Problem>>;
type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// A resource and a method.
pub(crate) struct Route {
    pub(crate) method: Method,
    /// The address; names in braces stand for ids.
    pub(crate) path: &'static str,
    /// The operation id in the document, from which generated clients take names.
    pub(crate) id: &'static str,
    pub(crate) summary: &'static str,
    pub(crate) query: &'static [QueryField],
    pub(crate) input: EndpointInput,
    /// The schema of the JSON body.
    pub(crate) body_schema: Option<SchemaOf>,
    pub(crate) answers: &'static [RouteAnswer],
    pub(crate) run: for<'a> fn(Call<'a>) -> AnswerFuture<'a>,
}

/// An answer of a route.
pub(crate) struct RouteAnswer {
    pub(crate) status: u16,
    pub(crate) about: &'static str,
    pub(crate) body: Body,
}

/// The body of an answer.
pub(crate) enum Body {
    Json(SchemaOf),
    /// JSON, or the events of an execution if the client asks for events.
    JsonOrEvents(SchemaOf),
    Bytes,
    /// The document itself.
    Any,
}

fn schema<T: schemars::JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

const fn ok(about: &'static str, body: Body) -> RouteAnswer {
    RouteAnswer {
        status: 200,
        about,
        body,
    }
}

const RUN_ANSWERS: [RouteAnswer; 2] = [
    ok("The execution has ended.", Body::JsonOrEvents(schema::<model::Run>)),
    RouteAnswer {
        status: 202,
        about: "The execution still runs after `wait_s`.",
        body: Body::Json(schema::<model::Run>),
    },
];

const fn field(name: &'static str, kind: QueryKind, about: &'static str) -> QueryField {
    QueryField { name, kind, about }
}

const FILE_PATH: QueryField = field(
    "path",
    QueryKind::RequiredText,
    "A path inside the sandbox; relative ones start in `/home/user`.",
);

/// All routes.
pub(crate) static ROUTE_TABLE: [Route; 33] = [
    Route {
        method: Method::GET,
        path: "/v1/openapi.json",
        id: "getDescription",
        summary: "This document",
        query: &[],
        input: EndpointInput::Nothing,
        body_schema: None,
        answers: &[ok("The document.", Body::Any)],
        // The pipeline passes the request to `answer_anybody` instead.
        run: |_| async { Err(crate::problem::not_found()) }.boxed(),
    },
    Route {
        method: Method::POST,
        path: "/v1/run",
        id: "runOnce",
        summary: "Run code once in a fresh sandbox that is removed afterwards",
        query: &[],
        input: EndpointInput::Json,
        body_schema: Some(schema::<model::RunOnce>),
        answers: &RUN_ANSWERS,
        run: |call| run::once(call).boxed(),
    },
    Route {
        method: Method::GET,
        path: "/v1/sandboxes",
        id: "listSandboxes",
        summary: "Your sandboxes",
        query: &[],
        input: EndpointInput::CallerAtOnce,
        body_schema: None,
        answers: &[ok("Your sandboxes.", Body::Json(schema::<model::Sandboxes>))],
        run: |call| sandboxes::list(call).boxed(),
    },
    Route {
        method: Method::POST,
        path: "/v1/sandboxes",
        id: "createSandbox",
        summary: "Make a sandbox",
        query: &[],
        input: EndpointInput::Json,
        body_schema: Some(schema::<model::CreateSandbox>),
        answers: &[
            RouteAnswer {
                status: 201,
                about: "It was made.",
                body: Body::Json(schema::<model::Sandbox>),
            },
            ok(
                "One with this `key` was there already.",
                Body::Json(schema::<model::Sandbox>),
            ),
        ],
        run: |call| sandboxes::create(call).boxed(),
    },
    Route {
        method: Method::GET,
        path: "/v1/sandboxes/{sandbox_id}",
        id: "getSandbox",
        summary: "The state of a sandbox",
        query: &[],
        input: EndpointInput::CallerAtOnce,
        body_schema: None,
        answers: &[ok("The sandbox.", Body::Json(schema::<model::Sandbox>))],
        run: |call| sandboxes::status(call).boxed(),
    },
    Route {
        method: Method::DELETE,
        path: "/v1/sandboxes/{sandbox_id}",
        id: "closeSandbox",
        summary: "Close a sandbox and everything in it",
        query: &[],
        input: EndpointInput::CallerAtOnce,
        body_schema: None,
        answers: &[ok("It is closed.", Body::Json(schema::<model::Closed>))],
        run: |call| sandboxes::close(call).boxed(),
    },
    Route {
        method: Method::PUT,
        path: "/v1/sandboxes/{sandbox_id}/network",
        id: "setNetwork",
        summary: "Replace the hosts that a sandbox can reach; its connections to other hosts end",
        query: &[],
        input: EndpointInput::Json,
        body_schema: Some(schema::<model::SetNetwork>),
        answers: &[ok("The sandbox.", Body::Json(schema::<model::Sandbox>))],
        run: |call| sandboxes::set_network(call).boxed(),
    },
    Route {
        method: Method::POST,
        path: "/v1/sandboxes/{sandbox_id}/run",
        id: "runCode",
        summary: "Run code in a sandbox; variables and files stay for the next run",
        query: &[],
        input: EndpointInput::Json,
        body_schema: Some(schema::<model::RunCode>),
        answers: &RUN_ANSWERS,
        run: |call| run::code(call).boxed(),
    },
    Route {
        method: Method::POST,
        path: "/v1/sandboxes/{sandbox_id}/commands",
        id: "runCommand",
        summary: "Run a command in a sandbox, in parallel with the code that runs there",
        query: &[],
        input: EndpointInput::Json,
        body_schema: Some(schema::<model::RunCommand>),
        answers: &RUN_ANSWERS,
        run: |call| commands::command(call).boxed(),
    },
    Route {
        method: Method::GET,
        path: "/v1/sandboxes/{sandbox_id}/files",
        id: "listFiles",
        summary: "List a folder of a sandbox",
        query: &[
            field("path", QueryKind::Text, "The folder; `/home/user` if left out."),
            field(
                "recursive",
                QueryKind::Flag,
                "True to list the folders inside it as well.",
            ),
        ],
        input: EndpointInput::Caller,
        body_schema: None,
        answers: &[ok("The folder.", Body::Json(schema::<model::Folder>))],
        run: |call| files::list(call).boxed(),
    },
    Route {
        method: Method::GET,
        path: "/v1/sandboxes/{sandbox_id}/file",
        id: "readFile",
        summary: "Read a file of a sandbox; a header `Range` with one range reads a part",
        query: &[FILE_PATH],
        input: EndpointInput::Caller,
        body_schema: None,
        answers: &[
            ok("The bytes of the file.", Body::Bytes),
            RouteAnswer {
                status: 206,
                about: "The bytes of the range.",
                body: Body::Bytes,
            },
            RouteAnswer {
                status: 416,
                about: "The file does not have these bytes.",
                body: Body::Json(schema::<model::Problem>),
            },
        ],
        run: |call| files::read(call).boxed(),
    },
    Route {
        method: Method::PUT,
        path: "/v1/sandboxes/{sandbox_id}/file",
        id: "writeFile",
        summary: "Write the bytes of the body to a file of a sandbox; missing folders are made",
        query: &[
            FILE_PATH,
            field("append", QueryKind::Flag, "True to append the bytes to the file."),
        ],
        input: EndpointInput::Stream,
        body_schema: None,
        answers: &[ok("It is written.", Body::Json(schema::<model::WrittenFile>))],
        run: |call| files::write(call).boxed(),
    },
    Route {
        method: Method::POST,
        path: "/v1/sandboxes/{sandbox_id}/checkpoints",
        id: "createCheckpoint",
        summary: "Keep the variables and files of a sandbox as they are now",
        query: &[],
        input: EndpointInput::Json,
        body_schema: Some(schema::<model::CreateCheckpoint>),
        answers: &[RouteAnswer {
            status: 201,
            about: "It was made.",
            body: Body::Json(schema::<model::CreatedCheckpoint>),
        }],
        run: |call| checkpoints::create(call).boxed(),
    },
    Route {
        method: Method::POST,
        path: "/v1/sandboxes/{sandbox_id}/branches",
        id: "branchSandbox",
        summary: "Make sandboxes that go on from the variables and files of this one",
        query: &[],
        input: EndpointInput::Json,
        body_schema: Some(schema::<model::CreateBranches>),
        answers: &[RouteAnswer {
            status: 201,
            about: "They were made.",
            body: Body::Json(schema::<model::Sandboxes>),
        }],
        run: |call| checkpoints::branch(call).boxed(),
    },
    Route {
        method: Method::POST,
        path: "/v1/sandboxes/{sandbox_id}/save",
        id: "saveSandbox",
        summary: "Save the variables and files of a sandbox under a name; they outlive the server",
        query: &[],
        input: EndpointInput::Json,
        body_schema: Some(schema::<model::SaveSandbox>),
        answers: &[RouteAnswer {
            status: 201,
            about: "It is saved.",
            body: Body::Json(schema::<model::Saved>),
        }],
        run: |call| checkpoints::save(call).boxed(),
    },
    Route {
        method: Method::GET,
        path: "/v1/saved",
        id: "listSaved",
        summary: "The saved states",
        query: &[],
        input: EndpointInput::CallerAtOnce,
        body_schema: None,
        answers: &[ok("The saved states.", Body::Json(schema::<model::SavedStates>))],
        run: |call| checkpoints::saved(call).boxed(),
    },
    Route {
        method: Method::POST,
        path: "/v1/saved/{name}/sandboxes",
        id: "openSaved",
        summary: "Make sandboxes that go on from a saved state",
        query: &[],
        input: EndpointInput::Json,
        body_schema: Some(schema::<model::OpenSaved>),
        answers: &[RouteAnswer {
            status: 201,
            about: "They were made.",
            body: Body::Json(schema::<model::Sandboxes>),
        }],
        run: |call| checkpoints::open_saved(call).boxed(),
    },
    Route {
        method: Method::DELETE,
        path: "/v1/saved/{name}",
        id: "dropSaved",
        summary: "Drop a saved state",
        query: &[],
        input: EndpointInput::CallerAtOnce,
        body_schema: None,
        answers: &[ok("It is dropped.", Body::Json(schema::<model::DroppedCheckpoint>))],
        run: |call| checkpoints::drop_saved(call).boxed(),
    },
    Route {
        method: Method::GET,
        path: "/v1/sandboxes/{sandbox_id}/checkpoints",
        id: "listCheckpoints",
        summary: "The checkpoints of a sandbox",
        query: &[],
        input: EndpointInput::CallerAtOnce,
        body_schema: None,
        answers: &[ok("The checkpoints.", Body::Json(schema::<model::Checkpoints>))],
        run: |call| checkpoints::list(call).boxed(),
    },
    Route {
        method: Method::DELETE,
        path: "/v1/sandboxes/{sandbox_id}/checkpoints/{name}",
        id: "dropCheckpoint",
        summary: "Drop a checkpoint",
        query: &[],
        input: EndpointInput::CallerAtOnce,
        body_schema: None,
        answers: &[ok("It is dropped.", Body::Json(schema::<model::DroppedCheckpoint>))],
        run: |call| checkpoints::remove(call).boxed(),
    },
    Route {
        method: Method::GET,
        path: "/v1/sandboxes/{sandbox_id}/changes",
        id: "listChanges",
        summary: "The files of a sandbox that differ from those of a checkpoint, and those of copy-on-write mounts that differ \
                  from the host's, with the changed lines",
        query: &[
            field(
                "since",
                QueryKind::Text,
                "The name of a checkpoint, or `-1`: the one before the last execution. Without it the answer has only the \
                 files of mounts.",
            ),
            field(
                "limit",
                QueryKind::Whole,
                "The maximum number of files: 1000 if left out.",
            ),
        ],
        input: EndpointInput::Caller,
        body_schema: None,
        answers: &[ok("The files.", Body::Json(schema::<model::Changes>))],
        run: |call| checkpoints::changes(call).boxed(),
    },
    Route {
        method: Method::POST,
        path: "/v1/sandboxes/{sandbox_id}/commit",
        id: "commitChanges",
        summary: "Apply changes in copy-on-write mounts to the host's folders; only for the operator, by `sandcell commit`",
        query: &[],
        input: EndpointInput::Json,
        body_schema: Some(schema::<model::Commit>),
        answers: &[ok(
            "The changes, each applied or refused with a reason.",
            Body::Json(schema::<model::Committed>),
        )],
        run: |call| commits::commit(call).boxed(),
    },
    Route {
        method: Method::POST,
        path: "/v1/sandboxes/{sandbox_id}/rewind",
        id: "rewindSandbox",
        summary: "Bring back the variables and files of a checkpoint; the checkpoint stays",
        query: &[],
        input: EndpointInput::Json,
        body_schema: Some(schema::<model::Rewind>),
        answers: &[ok(
            "The sandbox is back at the checkpoint.",
            Body::Json(schema::<model::Rewound>),
        )],
        run: |call| checkpoints::rewind(call).boxed(),
    },
    Route {
        method: Method::GET,
        path: "/v1/sandboxes/{sandbox_id}/ports/{port}",
        id: "connectToPort",
        summary: "Connect to a program that listens in a sandbox: with `Upgrade: tcp` the connection becomes one to its port",
        query: &[],
        input: EndpointInput::Raw,
        body_schema: None,
        answers: &[RouteAnswer {
            status: 101,
            about: "From now on the connection carries the bytes of the port.",
            body: Body::Any,
        }],
        run: |call| ports::connect(call).boxed(),
    },
    Route {
        method: Method::GET,
        path: "/v1/executions",
        id: "listExecutions",
        summary: "Running executions, and the newest finished ones",
        query: &[field(
            "limit",
            QueryKind::Whole,
            "The maximum number of finished executions: 10 if left out, up to 50.",
        )],
        input: EndpointInput::Caller,
        body_schema: None,
        answers: &[ok("Your executions.", Body::Json(schema::<model::Executions>))],
        run: |call| executions::list(call).boxed(),
    },
    Route {
        method: Method::GET,
        path: "/v1/executions/{execution_id}",
        id: "getExecution",
        summary: "The state of an execution, or its events from the first one on",
        query: &[field(
            "wait_s",
            QueryKind::Number,
            "Wait for the end for this many seconds at most; 0 if left out.",
        )],
        input: EndpointInput::Caller,
        body_schema: None,
        answers: &[
            ok("The execution has ended.", Body::JsonOrEvents(schema::<model::Run>)),
            RouteAnswer {
                status: 202,
                about: "The execution still runs.",
                body: Body::Json(schema::<model::Run>),
            },
        ],
        run: |call| executions::get(call).boxed(),
    },
    Route {
        method: Method::POST,
        path: "/v1/executions/{execution_id}/cancel",
        id: "cancelExecution",
        summary: "Stop an execution: it is interrupted, and killed if it does not stop",
        query: &[],
        input: EndpointInput::CallerAtOnce,
        body_schema: None,
        answers: &[
            ok("It has ended.", Body::Json(schema::<model::Run>)),
            RouteAnswer {
                status: 202,
                about: "It has not ended yet.",
                body: Body::Json(schema::<model::Run>),
            },
        ],
        run: |call| executions::cancel(call).boxed(),
    },
    Route {
        method: Method::GET,
        path: "/v1/executions/{execution_id}/output",
        id: "readOutput",
        summary: "Read a part of an execution's output",
        query: &[
            field("stream", QueryKind::Text, "`stdout` (if left out) or `stderr`."),
            field(
                "offset",
                QueryKind::Signed,
                "The first byte; negative numbers count from the end.",
            ),
            field("limit", QueryKind::Whole, "Bytes: 256 KiB if left out, up to 1 MiB."),
        ],
        input: EndpointInput::Caller,
        body_schema: None,
        answers: &[ok("The part.", Body::Json(schema::<model::OutputText>))],
        run: |call| executions::output(call).boxed(),
    },
    Route {
        method: Method::GET,
        path: "/v1/executions/{execution_id}/files/{number}",
        id: "readOutputFile",
        summary: "Read a picture or a file of an execution",
        query: &[],
        input: EndpointInput::Caller,
        body_schema: None,
        answers: &[ok("The bytes of the file.", Body::Bytes)],
        run: |call| executions::file(call).boxed(),
    },
    Route {
        method: Method::GET,
        path: "/v1/approvals",
        id: "listApprovals",
        summary: "Calls of the host's tools that wait for a person",
        query: &[],
        input: EndpointInput::CallerAtOnce,
        body_schema: None,
        answers: &[ok("The questions.", Body::Json(schema::<model::Approvals>))],
        run: |call| approvals::list(call).boxed(),
    },
    Route {
        method: Method::POST,
        path: "/v1/approvals/{execution_id}/{number}",
        id: "answerApproval",
        summary: "Decide about a call of a tool",
        query: &[],
        input: EndpointInput::Json,
        body_schema: Some(schema::<model::ApprovalAnswer>),
        answers: &[ok(
            "The question is answered. These questions still wait.",
            Body::Json(schema::<model::Approvals>),
        )],
        run: |call| approvals::answer(call).boxed(),
    },
    Route {
        method: Method::POST,
        path: fusion::RUN_CODE_PATH,
        id: "runCodeAsSandboxFusion",
        summary: "Run a program in the format of SandboxFusion",
        query: &[],
        input: EndpointInput::Json,
        body_schema: Some(schema::<fusion::Request>),
        answers: &[
            ok("The result of the program.", Body::Json(schema::<fusion::Answer>)),
            RouteAnswer {
                status: 422,
                about: "The request is invalid, or names an unknown language.",
                body: Body::Json(schema::<fusion::InvalidRequest>),
            },
        ],
        run: |call| fusion::run_code(call).boxed(),
    },
    Route {
        method: Method::GET,
        path: "/v1/languages",
        id: "listLanguages",
        summary: "The languages of this server",
        query: &[],
        input: EndpointInput::Caller,
        body_schema: None,
        answers: &[ok("The languages.", Body::Json(schema::<model::Languages>))],
        run: |call| sandboxes::languages(call).boxed(),
    },
];

/// Returns the route of a request, and the ids in its path.
pub(crate) fn find<'p>(method: &Method, path: &'p str) -> Result<(&'static Route, Vec<&'p str>), NotFound> {
    let mut here = ROUTE_TABLE
        .iter()
        .filter_map(|route| Some((route, ids(route.path, path)?)))
        .peekable();
    let Some((first, _)) = here.peek() else {
        return Err(NotFound::Address);
    };
    let others = allowed(first.path);
    here.find(|(route, _)| route.method == *method)
        .ok_or(NotFound::Method(others))
}

/// Returns the ids of a path, if the path matches the template.
fn ids<'p>(form: &str, path: &'p str) -> Option<Vec<&'p str>> {
    let (mut names, mut parts) = (form.split('/'), path.split('/'));
    let mut ids = Vec::new();
    loop {
        match (names.next(), parts.next()) {
            (None, None) => return Some(ids),
            (Some(name), Some(part)) if name.starts_with('{') && !part.is_empty() => ids.push(part),
            (Some(name), Some(part)) if name == part => {}
            _ => return None,
        }
    }
}

/// Returns the methods of an address, as the `Allow` header has them.
fn allowed(path: &str) -> &'static str {
    match path {
        "/v1/sandboxes" => "GET, POST",
        "/v1/sandboxes/{sandbox_id}" => "GET, DELETE",
        "/v1/sandboxes/{sandbox_id}/file" => "GET, PUT",
        "/v1/sandboxes/{sandbox_id}/checkpoints" => "GET, POST",
        "/v1/sandboxes/{sandbox_id}/checkpoints/{name}" | "/v1/saved/{name}" => "DELETE",
        _ => match ROUTE_TABLE.iter().find(|route| route.path == path) {
            Some(route) if route.method == Method::POST => "POST",
            Some(route) if route.method == Method::PUT => "PUT",
            _ => "GET",
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_is_found_by_its_own_address_and_method() {
        for route in &ROUTE_TABLE {
            let path = route.path.replace("{number}", "0").replace(['{', '}'], "");
            let (found, _) = find(&route.method, &path).unwrap();
            assert_eq!(found.id, route.id);
            let allowed = allowed(route.path);
            assert!(
                allowed.split(", ").any(|one| one == route.method.as_str()),
                "{path}: {allowed}"
            );
            assert_eq!(find(&Method::PATCH, &path).err(), Some(NotFound::Method(allowed)));
        }
        for allowed_of in ROUTE_TABLE.iter().map(|route| route.path) {
            let methods = ROUTE_TABLE.iter().filter(|route| route.path == allowed_of).count();
            assert_eq!(allowed(allowed_of).split(", ").count(), methods, "{allowed_of}");
        }
    }

    #[test]
    fn addresses_are_whole() {
        let (_, ids) = find(&Method::GET, "/v1/executions/ex1/files/2").unwrap();
        assert_eq!(ids, ["ex1", "2"]);
        for nothing in [
            "/v1",
            "/v1/",
            "/v1/sandboxes/",
            "/v1/sandboxes/a/",
            "/v1/sandboxes//file",
            "/v1/sandboxes/a/file/b",
            "/v1/executions/a/files/",
            "/run_code/",
        ] {
            assert_eq!(find(&Method::GET, nothing).err(), Some(NotFound::Address), "{nothing}");
        }
    }
}
