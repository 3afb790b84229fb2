//! The fixtures that the official MCP conformance suite calls, in addition to the real tools and behind the real
//! transports.
//!
//! They exist only in builds with the feature `conformance`, and there only when `serve` requests them. The suite
//! examines the server around them: this module has no part in transport, sessions, negotiation or checks of messages.
#![expect(deprecated, reason = "the suite examines what is deprecated, too")]

mod asks;
mod jobs;
mod readings;
mod talk;
mod tools;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rmcp::RoleServer;
use rmcp::handler::server::ServerHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CancelTaskParams, CompleteRequestParams, CompleteResult, CustomRequest,
    CustomResult, ErrorData, GetPromptRequestParams, GetPromptResponse, GetTaskParams, GetTaskResult,
    ListPromptsResult, ListResourceTemplatesResult, ListResourcesResult, ListToolsResult, PaginatedRequestParams,
    ReadResourceRequestParams, ReadResourceResponse, ServerCapabilities, ServerConfig, SetLevelRequestParams,
    SubscribeRequestParams, SubscriptionFilter, Tool, UnsubscribeRequestParams, UpdateTaskParams,
};
use rmcp::service::{RequestContext, SubscriptionContext, SubscriptionSink};
use rmcp::task_manager::TaskManager;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::server::{Fixture, Server};

/// The server, with the fixtures if requested.
#[derive(Clone)]
pub(crate) struct Handler {
    server: Server,
    fixtures: Option<Arc<Fixtures>>,
}

/// The state of the fixtures.
struct Fixtures {
    listening: Mutex<BTreeMap<u64, SubscriptionSink>>,
    asks: Result<asks::Asks, ErrorData>,
    jobs: TaskManager,
}

/// Subscriptions that the fixtures serve at once.
const MAX_LISTENERS: u64 = 64;

impl Handler {
    pub(crate) fn new(server: Server, fixtures: Fixture) -> Self {
        let fixtures = match fixtures {
            Fixture::Absent => None,
            Fixture::Present => Some(Arc::new(Fixtures {
                listening: Mutex::default(),
                asks: asks::Asks::new(),
                jobs: TaskManager::new(),
            })),
        };
        Self { server, fixtures }
    }

    /// The same for another connection.
    pub(crate) fn connection(&self) -> Self {
        Self {
            server: self.server.connection(),
            fixtures: self.fixtures.clone(),
        }
    }
}

impl Fixtures {
    fn listening(&self) -> MutexGuard<'_, BTreeMap<u64, SubscriptionSink>> {
        self.listening.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has(&self, task: &str) -> bool {
        self.jobs.get_task(task).is_ok()
    }

    fn sinks(&self) -> Vec<SubscriptionSink> {
        self.listening().values().cloned().collect()
    }

    async fn call(
        &self,
        request: CallToolRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        match request.name.as_ref() {
            name if jobs::has(name) => jobs::call(&self.jobs, &request, context).await,
            name if asks::has(name) => {
                let asks = self.asks.as_ref().map_err(Clone::clone)?;
                asks.call(&request, context)
            }
            "test_trigger_tool_change" => {
                for sink in self.sinks() {
                    // A client that has left gets no message.
                    let _gone = sink.notify_tool_list_changed().await;
                }
                Ok(tools::text("Tool list change triggered"))
            }
            "test_trigger_prompt_change" => {
                for sink in self.sinks() {
                    let _gone = sink.notify_prompt_list_changed().await;
                }
                Ok(tools::text("Prompt list change triggered"))
            }
            _ => match tools::fixed(&request) {
                Some(answer) => answer,
                None => talk::call(&request, context).await,
            },
        }
    }
}

/// A value of the protocol from its JSON.
fn of<T: DeserializeOwned>(json: Value) -> Result<T, ErrorData> {
    serde_json::from_value(json).map_err(|error| ErrorData::internal_error(error.to_string(), None))
}

fn capabilities() -> ServerCapabilities {
    ServerCapabilities::builder()
        .enable_tools()
        .enable_tool_list_changed()
        .enable_prompts()
        .enable_prompts_list_changed()
        .enable_resources()
        .enable_resources_subscribe()
        .enable_resources_list_changed()
        .enable_logging()
        .enable_completions()
        .enable_tasks()
        .build()
}

impl ServerHandler for Handler {
    fn get_info(&self) -> ServerConfig {
        let mut info = self.server.get_info();
        if self.fixtures.is_some() {
            info.capabilities = capabilities();
        }
        info
    }

    async fn list_tools(
        &self,
        page: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let mut list = self.server.list_tools(page, context).await?;
        if self.fixtures.is_some() {
            list.tools.extend(tools::all());
        }
        Ok(list)
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        let fixture = || tools::all().into_iter().find(|tool| tool.name == name);
        self.fixtures
            .as_ref()
            .and_then(|_| fixture())
            .or_else(|| self.server.get_tool(name))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        match &self.fixtures {
            Some(fixtures) if tools::has(&request.name) => fixtures.call(request, &context).await,
            _ => self.server.call_tool(request, context).await,
        }
    }

    async fn list_prompts(
        &self,
        page: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        let mut list = self.server.list_prompts(page, context).await?;
        if self.fixtures.is_some() {
            list.prompts.extend(readings::prompts()?);
        }
        Ok(list)
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        if let Some(answer) = self.fixtures.as_ref().and_then(|_| readings::prompt(&request)) {
            return answer;
        }
        self.server.get_prompt(request, context).await
    }

    async fn list_resources(
        &self,
        page: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let mut list = self.server.list_resources(page, context).await?;
        if self.fixtures.is_some() {
            list.resources.extend(readings::resources()?);
        }
        Ok(list)
    }

    async fn list_resource_templates(
        &self,
        page: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        let mut list = self.server.list_resource_templates(page, context).await?;
        if self.fixtures.is_some() {
            list.resource_templates.extend(readings::templates()?);
        }
        Ok(list)
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        if let Some(answer) = self.fixtures.as_ref().and_then(|_| readings::resource(&request.uri)) {
            return answer;
        }
        self.server.read_resource(request, context).await
    }

    async fn complete(
        &self,
        request: CompleteRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        self.server.complete(request, context).await
    }

    async fn on_custom_request(
        &self,
        request: CustomRequest,
        context: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        self.server.on_custom_request(request, context).await
    }

    async fn set_level(
        &self,
        request: SetLevelRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        match &self.fixtures {
            Some(_) => Ok(()),
            None => self.server.set_level(request, context).await,
        }
    }

    async fn subscribe(
        &self,
        request: SubscribeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        match &self.fixtures {
            Some(_) => Ok(()),
            None => self.server.subscribe(request, context).await,
        }
    }

    async fn unsubscribe(
        &self,
        request: UnsubscribeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        match &self.fixtures {
            Some(_) => Ok(()),
            None => self.server.unsubscribe(request, context).await,
        }
    }

    fn accepted_subscription_filter(&self, requested: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        match &self.fixtures {
            Some(_) => Some(requested.supported_by(&capabilities())),
            None => self.server.accepted_subscription_filter(requested),
        }
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        let Some(fixtures) = &self.fixtures else {
            return self.server.listen(context).await;
        };
        let place = {
            let mut listening = fixtures.listening();
            let place = (0..MAX_LISTENERS).find(|place| !listening.contains_key(place));
            if let Some(place) = place {
                listening.insert(place, context.sink().clone());
            }
            place
        };
        context.cancelled().await;
        if let Some(place) = place {
            fixtures.listening().remove(&place);
        }
        Ok(())
    }

    async fn get_task(
        &self,
        request: GetTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetTaskResult, ErrorData> {
        match &self.fixtures {
            Some(fixtures) if fixtures.has(&request.task_id) => {
                fixtures.jobs.get_task(&request.task_id).map(GetTaskResult::new)
            }
            _ => self.server.get_task(request, context).await,
        }
    }

    async fn update_task(
        &self,
        request: UpdateTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        match &self.fixtures {
            Some(fixtures) if fixtures.has(&request.task_id) => {
                fixtures.jobs.update_task(&request.task_id, request.input_responses)
            }
            _ => self.server.update_task(request, context).await,
        }
    }

    async fn cancel_task(
        &self,
        request: CancelTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        match &self.fixtures {
            Some(fixtures) if fixtures.has(&request.task_id) => fixtures.jobs.cancel_task(&request.task_id),
            _ => self.server.cancel_task(request, context).await,
        }
    }
}
