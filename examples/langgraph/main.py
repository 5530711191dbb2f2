from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

from outlast import DurableAgentServer
from outlast_langgraph import LangGraphAgent


def answer(state: MessagesState) -> dict[str, list[AIMessage]]:
    return {"messages": [AIMessage(f"You said: {state['messages'][-1].text}")]}


graph = StateGraph(MessagesState)
graph.add_node("answer", answer)
graph.add_edge(START, "answer")

app = DurableAgentServer(LangGraphAgent(graph.compile()))
