"""Tools reach the model, or they are refused. The bundled model's template shows them as its engine will."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import InvalidRequest
from data_plane.gateway.api.chat_template import ChatTemplate, renders_tools, require_tools_rendered
from data_plane.gateway.api.openai_request import Call
from tenora.stack.base_model import _TEMPLATE
from tests.fixtures.gateway.tiny_tokenizer import tiny_route
from tests.fixtures.late_import import LateModule

protocol = LateModule("vllm.entrypoints.openai.chat_completion.protocol")
renderer = LateModule("vllm.renderers.hf")

PLAIN = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
BEFORE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""The template that the bundled model comes with."""
SMOLLM = ChatTemplate(tiny_route(template=_TEMPLATE))
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
CALL = {"id": "c", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Köln"}'}}
USER, ASKED = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "", "tool_calls": [CALL]}
FOUND = {"role": "tool", "content": "12 °C", "tool_call_id": "c"}


@given(
    chat=st.lists(
        st.fixed_dictionaries(
            {"role": st.sampled_from(["system", "user", "assistant"]), "content": st.text(max_size=9)}
        ),
        min_size=1, max_size=4,
    ),
    continued=st.booleans(),
)  # fmt: skip
def test_a_chat_without_tools_renders_as_it_did_before(chat, continued):
    continued = continued and bool(chat[-1]["content"].strip())
    before = ChatTemplate(tiny_route(template=BEFORE)).render(chat, None, continue_final_message=continued)
    assert SMOLLM.render(chat, None, continue_final_message=continued) == before


def test_the_bundled_model_sees_tools_calls_and_results_in_hermes_format():
    shown = SMOLLM.render([{"role": "system", "content": "Short."}, USER, ASKED, FOUND, FOUND], [TOOL])
    function = '{"name": "get_weather", "description": null, "parameters": {"type": "object"}}'
    assert shown.startswith("<|im_start|>system\nShort.\n\n# Tools\n")
    assert f'<tools>\n{{"type": "function", "function": {function}}}\n</tools>' in shown
    assert shown.endswith(
        "<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\n12 °C\n</tool_response>\n"
        "<tool_response>\n12 °C\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert shown.count("<|im_start|>system") == 1


@pytest.mark.parametrize("more", [{}, {"description": "d"}, {"strict": True}, {"strict": False, "description": "d"}])
def test_a_tool_is_shown_with_the_members_that_vllm_gives_it(more):
    tool = {"type": "function", "function": {"parameters": {"type": "object"}, **more, "name": "f"}}
    template = ChatTemplate(tiny_route(template="{% for tool in tools %}{{ tool }}{% endfor %}"))
    assert template.render([USER], [tool]) == str(protocol.ChatCompletionToolsParam(**tool).model_dump())


@pytest.mark.parametrize("roles", [["developer", "user"], ["system", "user", "developer"], ["user", "developer"]])
def test_a_developer_speaks_as_vllm_makes_it_speak(roles):
    chat = [{"role": role, "content": f"{role} {at}"} for at, role in enumerate(roles)]
    converted = renderer.private("_convert_developer_to_system")(chat)
    expected = renderer.private("_consolidate_system_messages")(converted)
    assert SMOLLM.render(chat, None) == SMOLLM.render(expected, None)


@pytest.mark.parametrize(
    ("template", "shown"),
    [
        (_TEMPLATE, True),
        (PLAIN, False),
        (
            "{% if messages[0].role != 'system' %}{{ raise_exception('no system') }}{% endif %}{{ tools | tojson }}",
            True,
        ),
        ("{{ raise_exception('never') }}", False),
        ("{% if %}", False),
    ],
)
def test_a_template_shows_tools_if_they_are_in_its_text(template, shown):
    assert renders_tools(tiny_route(template=template)) is shown


def chat(messages: list[dict], tools: list[dict] | None = None, **fields: object) -> Call:
    return Call(
        kind="chat", model="m", messages=messages, prompts=None, tools=tools, n=1, max_tokens=None, stream=False,
        usage_shown="none", fields=fields,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("call", "param"),
    [
        (chat([USER], [TOOL]), "tools"),
        (chat([USER], [TOOL], tool_choice="required"), "tools"),
        (chat([USER, ASKED, FOUND]), "messages"),
        (chat([USER], [TOOL], tool_choice="none"), None),
        (chat([USER]), None),
    ],
)
def test_tools_that_a_model_would_not_see_are_refused(call, param):
    require_tools_rendered(tiny_route(template=_TEMPLATE), call)
    route = tiny_route(template=PLAIN)
    if param is None:
        require_tools_rendered(route, call)
        return
    with pytest.raises(InvalidRequest, match=r"capabilities\.tools") as refused:
        require_tools_rendered(route, call)
    assert (refused.value.code, refused.value.param) == ("tools_unsupported", param)
