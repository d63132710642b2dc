"""The smallest agent: one function as a tool, one question. Run it with `python examples/first_tool_call.py`.

The first run fetches the model (about 100 MB) and compiles the grammar kernels.
"""

from typing import Annotated, Literal

from pydantic import Field

from agentkit import Agent, Engine, tool


@tool
def get_weather(city: Annotated[str, Field(max_length=40)], unit: Literal["celsius", "fahrenheit"] = "celsius") -> dict[str, str | int]:
    """Get the weather in a city.

    Args:
        city: Name of the city.
        unit: Of the temperature.
    """
    return {"city": city, "sky": "snow", "temperature": -3 if unit == "celsius" else 27, "unit": unit}


def main() -> None:
    with Engine("smollm2-135m") as engine:
        agent = Agent(engine, tools=[get_weather], instructions="Answer in one short sentence from what the tool gives you.", max_tokens=100)
        result = agent.run_sync("What is the weather in Oslo?", tool_choice="required")
        for call in result.tool_calls:
            print(f"call     {call.name}({call.arguments!r})")  # a validated object: call.arguments.city is a str of at most 40 characters
            print(f"result   {call.result}")
        print(f"answer   {result.output}")
        print(f"usage    {result.usage}")


if __name__ == "__main__":
    main()
