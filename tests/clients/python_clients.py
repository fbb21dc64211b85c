"""Calls a gateway with users' libraries, each as its own documentation shows it, and prints one JSON object.

It runs in the clients' own environment, without Tenora: ``python python_clients.py <base url> <key>``.
"""

import json
import os
import sys
import warnings
from collections.abc import Callable

os.environ |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "ANONYMIZED_TELEMETRY": "False", "LANGSMITH_TRACING": "false"}
warnings.simplefilter("ignore")  # of these libraries about one another

MODEL = "tiny-chat"


def instructor(url: str, key: str) -> dict:
    import instructor
    import openai
    from pydantic import BaseModel

    class Person(BaseModel):
        name: str
        age: int

    said = [{"role": "user", "content": "Who is it?"}]
    found = {}
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
        client = instructor.from_openai(openai.OpenAI(base_url=url, api_key=key), mode=mode)
        person = client.chat.completions.create(model=MODEL, response_model=Person, messages=said)
        found[mode.name] = person.model_dump()
    return found


def litellm(url: str, key: str) -> dict:
    import litellm

    litellm.suppress_debug_info = True
    ours = {"model": f"openai/{MODEL}", "api_base": url, "api_key": key}
    said = [{"role": "user", "content": "hi"}]
    whole = litellm.completion(messages=said, **ours)
    stream = litellm.completion(messages=said, stream=True, stream_options={"include_usage": True}, **ours)
    chunks = list(stream)
    theirs = {"model": f"anthropic/{MODEL}", "api_base": url.removesuffix("/v1"), "api_key": key}
    message = litellm.completion(messages=said, max_tokens=64, **theirs)
    overflows = 0
    long = [{"role": "user", "content": "word " * 20_000}]
    for api in (ours, theirs):
        for asked in ({"messages": said, "max_tokens": 1_000_000}, {"messages": long, "max_tokens": 8}):
            try:
                litellm.completion(**asked, **api)
            except litellm.ContextWindowExceededError:
                overflows += 1
    return {
        "overflows": overflows,
        "text": whole.choices[0].message.content,
        "usage": whole.usage.prompt_tokens,
        "streamed": "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices),
        "message": message.choices[0].message.content,
    }


def anthropic(url: str, key: str) -> dict:
    import anthropic

    client = anthropic.Anthropic(base_url=url.removesuffix("/v1"), api_key=key)
    said = [{"role": "user", "content": "hi"}]
    asked = {"model": MODEL, "max_tokens": 64}
    whole = client.messages.create(messages=said, **asked)
    with client.messages.stream(messages=said, **asked) as stream:
        final = stream.get_final_message()
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tools = [{"name": "get_weather", "description": "The weather.", "input_schema": schema}]
    choice = {"type": "tool", "name": "get_weather"}
    called = client.messages.create(messages=said, tools=tools, tool_choice=choice, **asked)
    begun = client.messages.create(messages=[*said, {"role": "assistant", "content": "The weather is"}], **asked)
    models = client.models.list()
    return {
        "text": whole.content[0].text,
        "streamed": final.content[0].text,
        "usages": [each.usage.input_tokens + each.usage.cache_read_input_tokens for each in (whole, final)],
        "call": [called.stop_reason, called.content[0].name, called.content[0].input],
        "begun": begun.content[0].text,
        "models": [model.id for model in models],
        "model": client.models.retrieve(MODEL).id,
        "counted": client.messages.count_tokens(model=MODEL, messages=said).input_tokens,
    }


def langchain(url: str, key: str) -> dict:
    from langchain_core.exceptions import ContextOverflowError
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    @tool
    def get_weather(city: str) -> str:
        """The weather somewhere."""
        return f"sunny in {city}"

    model = ChatOpenAI(model=MODEL, base_url=url, api_key=key, max_tokens=64)
    overflow = ""
    try:
        model.invoke("hi", max_tokens=1_000_000)
    except ContextOverflowError as error:
        overflow = error.code
    answer = model.invoke([("system", "Be brief."), ("human", "hi")])
    streamed = "".join(chunk.content for chunk in model.stream("hi"))
    bound = model.bind_tools([get_weather])
    call = bound.invoke("get_weather please")
    result = get_weather.invoke(call.tool_calls[0])
    said = bound.invoke([("human", "get_weather please"), call, result, ("human", "so?")])
    return {
        "text": answer.content,
        "usage": answer.usage_metadata["input_tokens"],
        "streamed": streamed,
        "calls": [{"name": each["name"], "args": each["args"]} for each in call.tool_calls],
        "result": result.content,
        "then": said.content,
        "overflow": overflow,
    }


def langchain_completions(url: str, key: str) -> dict:
    """It sends every prompt in a list, and up to 20 of them at once."""
    from langchain_openai import OpenAI

    model = OpenAI(model=MODEL, base_url=url, api_key=key, max_tokens=8)
    return {
        "one": model.invoke("hi"),
        "streamed": "".join(model.stream("hi")),
        "many": model.batch(["hi", "what?", "so"]),
    }


def llama_index(url: str, key: str) -> dict:
    from llama_index.core.llms import ChatMessage
    from llama_index.llms.openai_like import OpenAILike

    model = OpenAILike(model=MODEL, api_base=url, api_key=key, is_chat_model=True, max_tokens=64, context_window=4096)
    said = [ChatMessage(role="user", content="hi")]
    streamed = "".join(each.delta or "" for each in model.stream_chat(said))
    return {"text": model.chat(said).message.content, "streamed": streamed, "completed": model.complete("hi").text}


CLIENTS: dict[str, Callable[[str, str], dict]] = {
    "anthropic": anthropic, "instructor": instructor, "litellm": litellm,
    "langchain": langchain, "langchain_completions": langchain_completions, "llama_index": llama_index,
}  # fmt: skip


def main() -> None:
    url, key, *names = sys.argv[1:]
    print(json.dumps({name: CLIENTS[name](url, key) for name in names}))


if __name__ == "__main__":
    main()
