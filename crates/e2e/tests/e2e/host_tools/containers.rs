//! Tools of the host in containers.

use sandcell_e2e::client::Client;
use sandcell_e2e::docker::Daemon;
use sandcell_e2e::{name_of, turns::Turn};
use serde_json::json;

use super::{cancel_a_call, error_of, output, place_with};

#[test]
fn code_in_a_container_calls_tools() {
    fn here() {}
    let Some(daemon) = Daemon::find(&name_of(here)) else {
        return;
    };
    let _turn = Turn::shared();
    let place = place_with(
        &format!(
            "backend = \"docker\"\n[docker]\nhost = \"{}\"\nimage = \"{}\"\npull = \"never\"\n",
            daemon.host, daemon.image
        ),
        "",
    );
    let server = Client::start(&mut place.command(&["serve"]));
    let ran = server.run(&format!(
        "print(sum(tools.stub.add(a=n, b=1)['sum'] for n in range(100)), tools.stub.echo(text='é'))\n{}{}",
        error_of("tools.call('stub.delete_all', {})"),
        error_of("tools.stub.store(key='a', value=1)"),
    ));
    let text = output(&ran);
    assert!(text.starts_with("5050 é\n"), "{}\n{}", ran.all(), server.log());
    assert_eq!(ran.meta()["isolation"]["backend"], "docker");
    assert_eq!(text.matches("ToolDenied tool_denied").count(), 2, "{text}");
    let once = server.call("create_run_close", json!({"code": "print(tools.stub.add(a=1, b=1))"}));
    assert!(once.output().contains("{'sum': 2}"), "{}", once.all());
    let bash = json!({"language": "bash", "code": "tools call stub.add '{\"a\": 2, \"b\": 3}'"});
    let shell = server.call("execute_code", bash);
    assert!(
        shell.output().contains("\"sum\": 5") || shell.output().contains("\"sum\":5"),
        "{}",
        shell.all()
    );
    cancel_a_call(&server, &place);
}
