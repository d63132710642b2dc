"""The smallest agent: one function as a tool, one question. Run it with `python examples/first_tool_call.py`.

The first run fetches the model (about 100 MB) and compiles the grammar kernels. The call is always valid; the answer after it
is free text, and a model of 135 million parameters often just repeats what the tool gave it.
"""

from typing import Annotated, Literal

from pydantic import Field

from agentkit import Agent, Engine, tool


@tool
def get_weather(city: Annotated[str, Field(max_length=40)], unit: Literal["celsius", "fahrenheit"] = "celsius") -> str:
    """Get the weather in a city.

    Args:
        city: Name of the city.
        unit: Of the temperature.
    """
    return f"It is snowing in {city}, at {-3 if unit == 'celsius' else 27} degrees {unit}."


def main() -> None:
    with Engine("smollm2-135m") as engine:
        agent = Agent(engine, tools=[get_weather], max_tokens=100)
        result = agent.run_sync("What is the weather in Oslo?", tool_choice="required")
        for call in result.tool_calls:
            print("call   ", call.name, repr(call.arguments))  # an object: call.arguments.city is a str of at most 40 characters
            print("result ", call.result)
        print("answer ", result.output)  # free text, in the words of a very small model
        print("usage  ", result.usage)


if __name__ == "__main__":
    main()
